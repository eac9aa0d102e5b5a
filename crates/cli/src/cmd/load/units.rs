//! Times and rates as they are printed.

use std::time::Duration;

/// A time in the unit that fits.
pub(super) fn time(nanos: f64) -> String {
    if nanos < 1e6 {
        format!("{:.1}µs", nanos / 1e3)
    } else if nanos < 1e9 {
        format!("{:.2}ms", nanos / 1e6)
    } else {
        format!("{:.3}s", nanos / 1e9)
    }
}

/// Bytes per second in the unit that fits.
pub(super) fn throughput(bytes: u64, time: Duration) -> String {
    let per_second = bytes as f64 / time.as_secs_f64().max(1e-9);
    match per_second {
        ..1e3 => format!("{per_second:.0} B/s"),
        1e3..1e6 => format!("{:.1} kB/s", per_second / 1e3),
        1e6..1e9 => format!("{:.1} MB/s", per_second / 1e6),
        _ => format!("{:.2} GB/s", per_second / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_printed_in_the_unit_that_fits() {
        assert_eq!(time(1500.0), "1.5µs");
        assert_eq!(time(999_900.0), "999.9µs");
        assert_eq!(time(1_234_567.0), "1.23ms");
        assert_eq!(time(1.5e9), "1.500s");
        assert_eq!(throughput(1_500_000, Duration::from_secs(1)), "1.5 MB/s");
    }
}
