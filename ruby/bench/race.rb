# frozen_string_literal: true

require "open3"
require "rbconfig"
require_relative "row"
require_relative "statistics"

module Bench
  # The contestants of a row, each in a process of its own, turn by turn. A ratio is taken between two processes of the same
  # round, so that a machine that slows down affects both.
  class Race
    Result = Struct.new(:row, :version, :originals, :replacements, keyword_init: true) do
      # The figures of the rounds: CPU seconds (or bytes) each, and objects each.
      def original
        Statistics.median(originals.map(&:first)) unless originals.empty?
      end

      def replacement
        Statistics.median(replacements.map(&:first))
      end

      def original_objects
        Statistics.median(originals.map(&:last)) unless originals.empty?
      end

      def objects
        Statistics.median(replacements.map(&:last))
      end

      # How many times as fast the replacement is, round by round; empty without an original.
      def ratios
        return [] if row.measure == :memory

        originals.zip(replacements).map { |original, replacement| original.first.fdiv(replacement.first) }
      end

      def ratio
        Statistics.median(ratios) unless ratios.empty?
      end

      # The confidence interval of the ratio.
      def interval
        Statistics.interval(ratios) unless ratios.empty?
      end

      # Whether the interval lies on one side of 1.
      def difference?
        low, high = interval
        low > 1 || high < 1
      end

      # Whether the bar is reached; nil where none is set or it cannot be determined.
      def met?
        return unless row.bar

        row.measure == :memory ? replacement <= row.bar : ratio && ratio >= row.bar
      end
    end

    def initialize(rounds:, smoke:)
      @rounds = rounds
      @smoke = smoke
    end

    def run(row)
      version = ORIGINALS.fetch(row.gem).version
      originals = []
      replacements = []
      @rounds.times do |round|
        contestants = [(["original", originals] if version), ["replacement", replacements]].compact
        # Every other round runs backwards.
        contestants.reverse! if round.odd?
        contestants.each { |name, figures| figures << contest(row, name) }
      end
      Result.new(row:, version:, originals:, replacements:)
    end

    private

    def contest(row, who)
      original = ORIGINALS.fetch(row.gem)
      arguments = who == "original" || original.both? ? original.arguments : []
      command = [RbConfig.ruby, *arguments, File.join(__dir__, "contestant.rb"), row.name, who, *("smoke" if @smoke)]
      out, err, status = Open3.capture3(*command)
      raise "#{row.label}: #{who} failed\n#{err}" unless status.success?

      out.split.map { |figure| Float(figure) }
    end
  end
end
