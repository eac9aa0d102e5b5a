//! A plot for each race: the cost of every contestant divided by Wireloom's, with its confidence interval.

use crate::results::{RaceResult, Ratio, Role};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const ROW: u32 = 26;
const NAMES: i32 = 330;
const WIDTH: u32 = 960;
const TOP: i32 = 46;

const INK: RGBColor = RGBColor(90, 98, 110);
const OURS: RGBColor = RGBColor(20, 120, 180);
const THEIRS: RGBColor = RGBColor(160, 168, 178);

/// The plot as SVG; `None` if nothing is compared.
pub(super) fn of_race(race: &RaceResult) -> Option<String> {
    let ours = race.wireloom()?;
    let bars: Vec<(&str, Role, Ratio)> = race
        .entries
        .iter()
        .filter_map(|entry| Some((entry.name.as_str(), entry.role, entry.ratio_to(ours)?)))
        .collect();
    if bars.len() < 2 {
        return None;
    }
    let most = bars.iter().map(|(_, _, ratio)| ratio.median.max(ratio.interval.1)).fold(1.0, f64::max);
    let mut svg = String::new();
    let height = TOP as u32 + ROW * bars.len() as u32 + 16;
    let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    draw(&area, race, &bars, most).ok()?;
    area.present().ok()?;
    drop(area);
    Some(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(
    area: &Area<'_>,
    race: &RaceResult,
    bars: &[(&str, Role, Ratio)],
    most: f64,
) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    area.fill(&WHITE)?;
    let font = |size: i32, color: RGBColor| ("sans-serif", size).into_font().color(&color);
    let title = format!("{} {}: cost in parts of wireloom's, less is better", race.workload, race.title);
    area.draw(&Text::new(title, (12, 10), font(17, BLACK)))?;
    let right = WIDTH as i32 - 150;
    let x = |value: f64| NAMES + ((right - NAMES) as f64 * value / most) as i32;
    for (at, (name, role, ratio)) in bars.iter().enumerate() {
        let y = TOP + at as i32 * ROW as i32;
        let middle = y + ROW as i32 / 2;
        let color = if matches!(role, Role::Wireloom | Role::Variant) { OURS } else { THEIRS };
        let end_of_line = Pos::new(HPos::Right, VPos::Center);
        area.draw(&Text::new((*name).to_owned(), (NAMES - 8, middle), font(14, INK).pos(end_of_line)))?;
        area.draw(&Rectangle::new([(NAMES, y + 4), (x(ratio.median), y + ROW as i32 - 4)], color.filled()))?;
        let (low, high) = ratio.interval;
        area.draw(&PathElement::new(vec![(x(low), middle), (x(high), middle)], BLACK))?;
        let label = format!("{:.2}", ratio.median);
        let start_of_line = Pos::new(HPos::Left, VPos::Center);
        let place = (x(ratio.median.max(high)) + 8, middle);
        area.draw(&Text::new(label, place, font(14, INK).pos(start_of_line)))?;
    }
    // The line of equal cost.
    area.draw(&PathElement::new(
        vec![(x(1.0), TOP), (x(1.0), TOP + (ROW as usize * bars.len()) as i32)],
        OURS,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Entry, Rounds};

    #[test]
    fn a_plot_names_every_contestant() {
        let entry = |name: &str, role, cost| Entry {
            name: name.into(),
            role,
            note: None,
            allocations: None,
            runs: vec![Rounds { costs: vec![cost; 9], rates: Vec::new() }],
        };
        let entries = vec![entry("wireloom", Role::Wireloom, 1.0), entry("rival 1.0", Role::Rival, 2.5)];
        let race = RaceResult {
            workload: "w0".into(),
            title: "a race".into(),
            cost: crate::results::Cost::CpuTime,
            message_len: None,
            entries,
            targets: Vec::new(),
        };
        let svg = of_race(&race).expect("a plot");
        assert!(svg.starts_with("<svg") && svg.contains("rival 1.0") && svg.contains("2.50"), "{svg}");
    }
}
