//! The speed at which a capture is replayed.

use std::time::Duration;

use serde_json::{Value, json};

/// The speed of `--replay`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Speed {
    /// This many times the speed of the capture.
    Times(f64),
    /// Without a pause.
    Max,
}

impl Default for Speed {
    fn default() -> Self {
        Self::Times(1.0)
    }
}

impl Speed {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        const RANGE: std::ops::RangeInclusive<f64> = 0.001..=1e6;
        if text == "max" {
            return Ok(Self::Max);
        }
        match text.parse() {
            Ok(times) if RANGE.contains(&times) => Ok(Self::Times(times)),
            _ => Err("it must be a number between 0.001 and 1000000, or max".into()),
        }
    }

    /// Scales a time of the capture to a time of the replay.
    pub(crate) fn scale(self, time: Duration) -> Duration {
        match self {
            Self::Times(times) => time.div_f64(times),
            Self::Max => Duration::ZERO,
        }
    }

    pub(crate) fn to_json(self) -> Value {
        match self {
            Self::Times(times) => json!(times),
            Self::Max => json!("max"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_numbers_or_max() {
        let second = Duration::from_secs(1);
        assert_eq!(Speed::parse("2").unwrap().scale(second), Duration::from_millis(500));
        assert_eq!(Speed::parse("0.5").unwrap().scale(second), Duration::from_secs(2));
        assert_eq!(Speed::parse("max").unwrap().scale(second), Duration::ZERO);
        assert_eq!(Speed::default().scale(second), second);
        for wrong in ["0", "-1", "fast", "nan", "inf", "", "1e9"] {
            assert!(Speed::parse(wrong).is_err(), "{wrong}");
        }
    }
}
