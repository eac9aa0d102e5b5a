# frozen_string_literal: true

module Bench
  # Medians and confidence intervals that assume nothing about the distribution of the samples.
  module Statistics
    module_function

    def median(samples)
      sorted = samples.sort
      middle = sorted.size / 2
      sorted.size.odd? ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2.0
    end

    # The confidence interval of the median, at 95 % or more; the whole range where the samples are too few for that.
    def interval(samples)
      sorted = samples.sort
      outside = ranks_outside(sorted.size)
      [sorted[outside], sorted[-1 - outside]]
    end

    # How many of +count+ sorted samples may be left out on each side: the number of samples below the median is binomial.
    def ranks_outside(count)
      term = tail = 0.5**count
      outside = 0
      while 2 * tail <= 0.05
        outside += 1
        term *= (count - outside + 1).fdiv(outside)
        tail += term
      end
      [outside - 1, 0].max
    end
  end
end
