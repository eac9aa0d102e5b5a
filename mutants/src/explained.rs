//! Mutants that change nothing that a test could observe, and why: `mutants/explained/CRATE.tsv`.
//!
//! One line covers the equal mutants of a function, in columns that tabs separate: file, function, change, how many of them
//! survive, and the reason. Lines of the source are not named, so that an edit elsewhere in the file changes nothing here.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::instrument::Mutant;

/// File, function and change.
type Kind = (String, String, String);

pub struct Explained {
    counts: BTreeMap<Kind, usize>,
}

impl Explained {
    /// Reads the file; without one, nothing is explained.
    pub fn read(path: &Path) -> Result<Self, String> {
        let mut counts = BTreeMap::new();
        let text = fs::read_to_string(path).unwrap_or_default();
        for (index, line) in
            text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        {
            let columns: Vec<&str> = line.split('\t').collect();
            let [file, function, change, count, reason] = columns[..] else {
                return Err(format!("{}:{}: {} columns, not 5", path.display(), index + 1, columns.len()));
            };
            let count: usize = count
                .parse()
                .map_err(|_| format!("{}:{}: {count:?} is no number", path.display(), index + 1))?;
            if reason.is_empty() {
                return Err(format!("{}:{}: no reason", path.display(), index + 1));
            }
            *counts.entry((file.to_owned(), function.to_owned(), change.to_owned())).or_default() += count;
        }
        Ok(Self { counts })
    }

    /// Compares the outcomes of mutants with the explanations. Returns the survivors of which more survive than are explained, and
    /// the explanations of mutants that are killed or gone.
    pub fn compare<'a>(&self, outcomes: &[(&'a Mutant, bool)]) -> (Vec<&'a Mutant>, Vec<String>) {
        let mut survivors: BTreeMap<Kind, Vec<&Mutant>> = BTreeMap::new();
        for (mutant, _) in outcomes.iter().filter(|(_, survives)| *survives) {
            let kind = (mutant.file.clone(), mutant.function.clone(), mutant.change.clone());
            survivors.entry(kind).or_default().push(mutant);
        }
        let explained = |kind: &Kind| self.counts.get(kind).copied().unwrap_or_default();
        let unexplained = survivors
            .iter()
            .filter(|(kind, mutants)| mutants.len() > explained(kind))
            .flat_map(|(_, mutants)| mutants.clone());
        let stale = self.counts.iter().filter_map(|(kind, &count)| {
            let survive = survivors.get(kind).map_or(0, Vec::len);
            let (file, function, change) = kind;
            (survive < count && outcomes.iter().any(|(mutant, _)| &mutant.file == file))
                .then(|| format!("{file}\t{function}\t{change}: {count} explained, {survive} survive"))
        });
        (unexplained.collect(), stale.collect())
    }
}
