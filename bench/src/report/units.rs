//! Numbers for readers: three digits and a unit.

/// Nanoseconds.
pub(super) fn duration(ns: f64) -> String {
    let (value, unit) = match ns {
        ..1e3 => (ns, "ns"),
        1e3..1e6 => (ns / 1e3, "µs"),
        _ => (ns / 1e6, "ms"),
    };
    digits(value) + " " + unit
}

/// A number of `unit`, in thousands, millions or billions.
pub(super) fn scaled(value: f64, unit: &str) -> String {
    let (value, prefix) = match value {
        ..1e3 => (value, ""),
        1e3..1e6 => (value / 1e3, "k"),
        1e6..1e9 => (value / 1e6, "M"),
        _ => (value / 1e9, "G"),
    };
    format!("{} {prefix}{unit}", digits(value))
}

/// A factor, with more digits if it is small.
pub(super) fn factor(value: f64) -> String {
    if value >= 10.0 { format!("{value:.1}") } else { format!("{value:.2}") }
}

fn digits(value: f64) -> String {
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_three_digits() {
        let shown = [5.678, 56.78, 567.8, 5_678.0, 56_780_000.0].map(duration);
        assert_eq!(shown, ["5.68 ns", "56.8 ns", "568 ns", "5.68 µs", "56.8 ms"]);
    }

    #[test]
    fn rates_have_a_prefix() {
        assert_eq!(scaled(12_345_678.0, "/s"), "12.3 M/s");
        assert_eq!(scaled(999.0, "B/s"), "999 B/s");
    }
}
