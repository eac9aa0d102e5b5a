//! Medians, quartiles and confidence intervals that assume nothing about the distribution of the samples.

/// The quantile of sorted samples, interpolated.
pub(crate) fn quantile(sorted: &[f64], at: f64) -> f64 {
    let place = at * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    low + (high - low) * place.fract()
}

/// A summary of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) quartiles: (f64, f64),
    /// The confidence interval of the median, at 95 % or more; the whole range where the samples are too few for that.
    pub(crate) interval: (f64, f64),
}

impl Summary {
    /// `None` without samples.
    pub(crate) fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let outside = ranks_outside(sorted.len());
        Some(Self {
            median: quantile(&sorted, 0.5),
            quartiles: (quantile(&sorted, 0.25), quantile(&sorted, 0.75)),
            interval: (sorted[outside], sorted[last - outside]),
        })
    }
}

/// How many of `count` sorted samples may be left out on each side so that the rest spans the median with a probability of at
/// least 95 %. The number of samples below the median is binomial with p = ½, whatever the distribution.
fn ranks_outside(count: usize) -> usize {
    let mut outside = 0;
    // The probability that at most `outside` samples are below the median, which is also that of the other side.
    let mut term = 0.5_f64.powi(count as i32);
    let mut tail = term;
    while 2.0 * tail <= 0.05 && 2 * outside + 2 < count {
        outside += 1;
        term *= (count - outside + 1) as f64 / outside as f64;
        tail += term;
    }
    // The last step exceeded the bound.
    outside.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[1.0], 0.25), 1.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.25), 2.0);
        assert_eq!(quantile(&[1.0, 3.0], 0.5), 2.0);
    }

    // Tables of the sign test: for n samples the interval runs from the k-th smallest to the k-th largest.
    #[test]
    fn intervals_have_the_published_ranks() {
        for (count, rank) in [(5, 1), (6, 1), (8, 1), (9, 2), (12, 3), (15, 4), (20, 6), (25, 8), (50, 18)] {
            assert_eq!(ranks_outside(count) + 1, rank, "{count} samples");
        }
    }

    #[test]
    fn a_summary_is_sorted() {
        let summary = Summary::of([3.0, 1.0, 2.0]).expect("samples");
        assert_eq!((summary.median, summary.interval), (2.0, (1.0, 3.0)));
        assert_eq!(Summary::of([]), None);
    }
}
