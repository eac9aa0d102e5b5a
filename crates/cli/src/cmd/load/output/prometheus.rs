//! The result in the text format of Prometheus, for a textfile collector or a push gateway. Times are in seconds.

use std::fmt::Write as _;

use super::super::report::Report;

pub(in crate::cmd::load) fn text(report: &Report) -> String {
    let mut out = String::new();
    let target = escape(&report.url);
    let scenario = report.scenario;
    let labels = format!("target=\"{target}\",scenario=\"{scenario}\"");
    let mut metric = |name: &str, kind: &str, help: &str, samples: &[(&str, String, f64)]| {
        let _ = writeln!(out, "# HELP wireloom_load_{name} {help}\n# TYPE wireloom_load_{name} {kind}");
        for (suffix, more, value) in samples {
            let _ = writeln!(out, "wireloom_load_{name}{suffix}{{{labels}{more}}} {value}");
        }
    };
    let counts = &report.counts;
    let one = |value: f64| [("", String::new(), value)];
    metric("duration_seconds", "gauge", "The measured time.", &one(report.measured.as_secs_f64()));
    metric("connections", "gauge", "Connections that were asked for.", &one(report.connections as f64));
    metric("sent", "gauge", "Messages sent.", &one(counts.sent as f64));
    metric(
        "answered",
        "gauge",
        "Answers that are right, or messages received.",
        &one(counts.received as f64),
    );
    metric("sent_bytes", "gauge", "Payload sent.", &one(counts.sent_bytes as f64));
    metric("answered_bytes", "gauge", "Payload of answers.", &one(counts.received_bytes as f64));
    metric("rate", "gauge", "Answers per second.", &one(report.rate));
    let latency = &report.latency;
    let mut samples: Vec<(&str, String, f64)> = latency
        .percentiles
        .iter()
        .filter(|_| latency.samples > 0)
        .map(|(percentile, nanos)| {
            // As few digits as the percentile has: 99.9 is 0.999.
            let quantile = (percentile * 1e7).round() / 1e9;
            ("", format!(",quantile=\"{quantile}\""), *nanos as f64 / 1e9)
        })
        .collect();
    samples.push(("_sum", String::new(), latency.mean * latency.samples as f64 / 1e9));
    samples.push(("_count", String::new(), latency.samples as f64));
    metric("latency_seconds", "summary", "Latency of answers.", &samples);
    metric("latency_max_seconds", "gauge", "The longest latency.", &one(latency.max as f64 / 1e9));
    if let Some(delay) = report.send_delay_p99 {
        metric("send_delay_p99_seconds", "gauge", "How late messages were sent.", &one(delay as f64 / 1e9));
    }
    metric("cpu_ratio", "gauge", "Processor time of load per time.", &one(report.cpu));
    let errors: Vec<(&str, String, f64)> = counts
        .errors
        .kinds()
        .iter()
        .map(|(kind, count)| ("", format!(",kind=\"{kind}\""), *count as f64))
        .collect();
    metric("errors", "gauge", "Errors by kind.", &errors);
    out
}

/// The value of a label.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escape("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
