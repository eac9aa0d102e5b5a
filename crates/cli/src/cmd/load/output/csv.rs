//! Each second, as comma-separated values (RFC 4180). Times are in seconds.

use std::fmt::Write as _;

use super::super::report::Report;

pub(in crate::cmd::load) fn text(report: &Report) -> String {
    let mut out = "at,seconds,sent,answered,errors,connections,p50,p99,max\r\n".to_owned();
    for second in &report.series {
        // A second without latencies has none, not 0.
        let seconds = |nanos: u64| match nanos {
            0 => String::new(),
            nanos => format!("{:.9}", nanos as f64 / 1e9),
        };
        let _ = write!(
            out,
            "{:.3},{:.3},{},{},{},{},{},{},{}\r\n",
            second.at.as_secs_f64(),
            second.time.as_secs_f64(),
            second.sent,
            second.received,
            second.errors,
            second.connections,
            seconds(second.p50),
            seconds(second.p99),
            seconds(second.max),
        );
    }
    out
}
