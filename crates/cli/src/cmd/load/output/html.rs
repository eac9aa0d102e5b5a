//! The result as a self-contained page without scripts, for phones, paper, and light and dark mode.

use std::fmt::Write as _;

use super::super::comparison::Direction;
use super::super::report::{Checked, Report};
use super::super::units::time;
use super::plot::{LINES, Plot, hex};
use super::table;
use crate::args::Scenario;

const STYLE: &str = include_str!("report.css");

/// Width and height of a plot, on a phone and elsewhere.
const SIZES: [(&str, u32, u32); 2] = [("wide", 900, 300), ("narrow", 400, 280)];

/// # Errors
/// A plot could not be drawn.
pub(in crate::cmd::load) fn page(report: &Report) -> Result<String, String> {
    let title = format!("Load on {}", escape(&report.url));
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    );
    let _ = writeln!(out, "<p class=\"soft\">{}</p>", escape(&summary(report)));
    cards(&mut out, report);
    if !report.warnings.is_empty() {
        out.push_str("<section class=\"warnings\">\n<h2>Warnings</h2>\n<ul>\n");
        for warning in &report.warnings {
            let _ = writeln!(out, "<li>{}</li>", escape(&capitalized(warning)));
        }
        out.push_str("</ul>\n</section>\n");
    }
    comparison(&mut out, report);
    plots(&mut out, report)?;
    out.push_str("<h2>All figures</h2>\n<table>\n");
    for (name, value) in table::rows(report) {
        let _ = writeln!(out, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape(&name), escape(&value));
    }
    let version = env!("CARGO_PKG_VERSION");
    let _ = writeln!(
        out,
        "</table>\n<p class=\"soft\">Made by wireloom {version}.</p>\n</main>\n</body>\n</html>"
    );
    Ok(out)
}

/// The run in one sentence.
fn summary(report: &Report) -> String {
    let config = &report.config;
    let manner = match (config["rate"].as_f64(), config["pipeline"].as_u64()) {
        (Some(rate), _) => format!("open loop at {rate} messages per second"),
        (None, Some(1)) => "closed loop, one message at a time on each".to_owned(),
        (None, Some(pipeline)) => format!("closed loop, {pipeline} messages at a time on each"),
        _ => "open loop in stages".to_owned(),
    };
    let manner = match report.scenario {
        Scenario::Source
        | Scenario::Idle
        | Scenario::Script
        | Scenario::Replay
        | Scenario::Churn
        | Scenario::Slow
        | Scenario::Sink
            if config["rate"].is_null() =>
        {
            String::new()
        }
        _ => format!(", {manner}"),
    };
    let connections = crate::terminal::count(report.connections as u64, "connection");
    format!(
        "Scenario {}, {connections}{manner}, for {:.1} s.",
        report.scenario,
        report.measured.as_secs_f64()
    )
}

fn cards(out: &mut String, report: &Report) {
    out.push_str("<dl class=\"cards\">\n");
    let mut card = |name: &str, value: &str, class: &str| {
        let _ = writeln!(out, "<div><dt>{name}</dt><dd class=\"{class}\">{}</dd></div>", escape(value));
    };
    card("Answers per second", &thousands(report.rate), "");
    for asked in [50.0, 99.0, 99.9] {
        if let Some(nanos) = report.latency.percentile(asked).filter(|_| report.latency.samples > 0) {
            card(&format!("Latency p{asked}"), &time(nanos as f64), "");
        }
    }
    let errors = report.counts.errors.total();
    card("Errors", &errors.to_string(), if errors > 0 { "bad" } else { "good" });
    if !report.expectations.is_empty() {
        let (value, class) =
            if Checked::all_are_met(&report.expectations) { ("met", "good") } else { ("not met", "bad") };
        card("Expectations", value, class);
    }
    out.push_str("</dl>\n");
}

fn comparison(out: &mut String, report: &Report) {
    let Some(comparison) = &report.comparison else { return };
    let _ = writeln!(out, "<h2>Compared with {}</h2>", escape(&comparison.with));
    let _ = writeln!(out, "<p>Result: <strong>{}</strong></p>", comparison.result());
    if comparison.changes.is_empty() {
        return;
    }
    out.push_str("<table>\n<tr><th scope=\"col\">Metric</th><th scope=\"col\">Median change</th><th scope=\"col\">95% confidence</th><th scope=\"col\">Result</th></tr>\n");
    for change in &comparison.changes {
        let class = match change.result() {
            Direction::Faster => "good",
            Direction::Slower => "bad",
            Direction::NotShown => "",
        };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{:+.1}%</td><td>{:+.1}% to {:+.1}%</td><td class=\"{class}\">{}</td></tr>",
            change.metric,
            change.median * 100.0,
            change.low * 100.0,
            change.high * 100.0,
            change.result(),
        );
    }
    out.push_str("</table>\n");
}

fn plots(out: &mut String, report: &Report) -> Result<(), String> {
    let end = report.series.last().map_or(1.0, |second| second.at.as_secs_f64()).max(1.0);
    let plain = |y: f64| thousands(y);
    let nanos = |y: f64| short_time(y);
    if report.latency.samples > 0 {
        percentiles(out, report)?;
    }
    let over_time = |value: &dyn Fn(&super::super::recorder::Second) -> f64| -> Vec<(f64, f64)> {
        report.series.iter().map(|second| (second.at.as_secs_f64(), value(second))).collect()
    };
    let plot = |y_label, lines, may_be_logarithmic| Plot {
        x: 0.0..end,
        x_label: &seconds,
        y_label,
        lines,
        may_be_logarithmic,
        x_ticks: Vec::new(),
    };
    let received = over_time(&|second| second.rate(second.received));
    let sent = over_time(&|second| second.rate(second.sent));
    figure(
        out,
        "Messages per second",
        "Each point is one second. Where the lines part, answers were missing or came later.",
        &["answered", "sent"],
        &plot(&plain, vec![received, sent], false),
    )?;
    if report.latency.samples > 0 {
        let of = |pick: &dyn Fn(&super::super::recorder::Second) -> u64| {
            let points = over_time(&|second| pick(second) as f64);
            // A second without answers has no latency.
            points.into_iter().filter(|(_, nanos)| *nanos > 0.0).collect::<Vec<_>>()
        };
        figure(
            out,
            "Latency over time",
            "Half of the answers of a second took at most p50, 99% at most p99. Peaks show pauses.",
            &["p50", "p99", "max"],
            &plot(
                &nanos,
                vec![of(&|second| second.p50), of(&|second| second.p99), of(&|second| second.max)],
                true,
            ),
        )?;
    }
    figure(
        out,
        "Connections",
        "Connections that were opened and that the server has not ended, at the end of each second.",
        &["open"],
        &plot(&plain, vec![over_time(&|second| second.connections as f64)], false),
    )?;
    if report.counts.errors.total() == 0 {
        out.push_str("<h2>Errors</h2>\n<p>None.</p>\n");
        return Ok(());
    }
    figure(
        out,
        "Errors per second",
        "Messages lost, wrong or unexpected, and connections that failed or were closed by the server.",
        &["errors"],
        &plot(&plain, vec![over_time(&|second| second.rate(second.errors))], false),
    )
}

/// Percentiles from 0 to 99.999, in steps that each leave out a tenth of the rest.
fn percentiles(out: &mut String, report: &Report) -> Result<(), String> {
    let position = |percentile: f64| -(1.0 - percentile / 100.0).log10();
    let samples = report.latency.samples as f64;
    let last = position(100.0 - 100.0 / samples.max(10.0));
    let points = report
        .latency
        .curve
        .iter()
        .map(|&(percentile, nanos)| (position(percentile).min(last), nanos as f64));
    let label = |x: f64| {
        let percentile = 100.0 - 100.0 / 10_f64.powf(x);
        format!("p{:.*}", (x - 2.0).ceil().max(0.0) as usize, percentile)
    };
    let nanos = |y: f64| short_time(y);
    let plot = Plot {
        x: 0.0..last,
        x_label: &label,
        y_label: &nanos,
        lines: vec![points.collect()],
        may_be_logarithmic: true,
        x_ticks: [position(50.0)].into_iter().chain((1..=last.floor() as u32).map(f64::from)).collect(),
    };
    let text = "The value at p99 is the time within which 99% of the answers came. From mark to mark, the share of slower answers falls to a tenth.";
    figure(out, "Latency by percentile", text, &["latency"], &plot)
}

fn figure(out: &mut String, title: &str, text: &str, names: &[&str], plot: &Plot<'_>) -> Result<(), String> {
    let _ = writeln!(out, "<figure>\n<figcaption><h2>{title}</h2><p>{text}</p></figcaption>");
    if names.len() > 1 {
        out.push_str("<ul class=\"keys\">");
        for (name, colour) in names.iter().zip(LINES) {
            let _ = write!(
                out,
                "<li><svg viewBox=\"0 0 32 10\" aria-hidden=\"true\"><path d=\"M0 5H32\" stroke=\"{}\" stroke-width=\"3\"/></svg>{name}</li>",
                hex(colour)
            );
        }
        out.push_str("</ul>\n");
    }
    for (class, width, height) in SIZES {
        let svg = plot.svg(width, height)?;
        let label = format!("<svg class=\"{class}\" role=\"img\" aria-label=\"{title}\"");
        let _ = writeln!(out, "{}", svg.replacen("<svg", &label, 1));
    }
    out.push_str("</figure>\n");
    Ok(())
}

/// A time since the run began, for a label.
fn seconds(seconds: f64) -> String {
    format!("{} s", (seconds * 100.0).round() / 100.0)
}

/// A latency for a label.
fn short_time(nanos: f64) -> String {
    let (value, unit) = match nanos {
        0.0 => return "0".to_owned(),
        ..1e3 => (nanos, "ns"),
        1e3..1e6 => (nanos / 1e3, "µs"),
        1e6..1e9 => (nanos / 1e6, "ms"),
        _ => (nanos / 1e9, "s"),
    };
    format!("{} {unit}", (value * 100.0).round() / 100.0)
}

/// A number with separators.
fn thousands(number: f64) -> String {
    if number.abs() < 100.0 && number.fract() != 0.0 {
        return format!("{number:.1}");
    }
    let digits = format!("{:.0}", number.abs());
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The message with a capital first letter.
fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in crate::terminal::visible_line(text).chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            char => out.push(char),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_separators() {
        assert_eq!(thousands(1234567.0), "1,234,567");
        assert_eq!(thousands(999.0), "999");
        assert_eq!(thousands(0.5), "0.5");
        assert_eq!(thousands(0.0), "0");
    }

    #[test]
    fn labels_of_axes_differ() {
        assert_eq!([0.0, 0.25, 1.5, 2.0].map(seconds), ["0 s", "0.25 s", "1.5 s", "2 s"]);
        assert_eq!([0.0, 900.0, 1.5e6, 2e9].map(short_time), ["0", "900 ns", "1.5 ms", "2 s"]);
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(escape("<a href=\"x\">&\n"), "&lt;a href=&quot;x&quot;&gt;&amp;\\n");
    }

    // In dark mode, the page's style replaces each colour of the plots.
    #[test]
    fn the_style_replaces_each_colour_of_the_plots() {
        for colour in LINES {
            assert!(STYLE.contains(&format!("[stroke=\"{}\"]", hex(colour))), "{}", hex(colour));
        }
        assert!(STYLE.contains(&format!("[fill=\"{}\"]", hex(super::super::plot::INK))));
        assert!(STYLE.contains(&format!("[stroke=\"{}\"]", hex(super::super::plot::GRID))));
    }
}
