//! `wireloom man` and `wireloom completions`: the files that packages install beside the command.

use std::io;

use clap::CommandFactory as _;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::print::{print, unwritable};
use crate::args::{self, Args};
use crate::exit::Exit;
use crate::{file, terminal};

pub(crate) fn man(args: &args::Man) -> Exit {
    let mut command = Args::command();
    command.build();
    if let Some(dir) = &args.dir {
        let write = |command: &clap::Command| {
            let name = format!("{}.1", command.get_display_name().unwrap_or(command.get_name()));
            std::fs::write(dir.join(name), page(command)?)
        };
        let written = file::check_folder(dir)
            .and_then(|()| std::fs::create_dir_all(dir))
            .and_then(|()| write(&command))
            .and_then(|()| command.get_subcommands().try_for_each(write));
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", dir.display()));
        return written.map_or_else(|error| unwritable(&named(error)), |()| Exit::Success);
    }
    let shown = match &args.subcommand {
        None => Some(&command),
        Some(name) => command.find_subcommand(name),
    };
    let Some(shown) = shown else {
        terminal::print_error("there is no such subcommand; `wireloom --help` names them");
        return Exit::Usage;
    };
    page(shown).map_or_else(|error| unwritable(&error), |page| print(&page))
}

/// A manual page. The text after the help is split into sections; clap_mangen would put it into one.
fn page(command: &clap::Command) -> io::Result<Vec<u8>> {
    let version = env!("CARGO_PKG_VERSION");
    let man = Man::new(command.clone()).source(format!("wireloom {version}"));
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    // As the help: clap_mangen would list each option here, without its value.
    let usage = command.clone().render_usage().to_string();
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]).text([roman(usage.trim_start_matches("Usage:").trim())]);
    roff.to_writer(&mut out)?;
    man.render_description_section(&mut out)?;
    let below = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (listed, plain): (Vec<&str>, Vec<&str>) =
        below.split("\n\n").partition(|paragraph| paragraph.contains(":\n  ") || paragraph.starts_with("  "));
    let mut roff = Roff::new();
    for paragraph in plain {
        roff.control("PP", []).text([roman(paragraph)]);
    }
    roff.to_writer(&mut out)?;
    man.render_options_section(&mut out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    let mut roff = Roff::new();
    for paragraph in listed {
        let mut lines = paragraph;
        if let Some((title, rest)) = paragraph.split_once(":\n") {
            let title = match title {
                "Exit codes" => "EXIT STATUS".into(),
                "Try it" => "EXAMPLES".into(),
                title => title.to_uppercase(),
            };
            roff.control("SH", [title.as_str()]);
            lines = rest;
        }
        // Without filling: lines are printed unchanged.
        roff.control("nf", []);
        for line in lines.lines() {
            roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
        }
        roff.control("fi", []);
    }
    roff.to_writer(&mut out)?;
    Ok(out)
}

pub(crate) fn completions(args: &args::Completions) -> Exit {
    let mut out = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "wireloom", &mut out);
    print(&out)
}
