# frozen_string_literal: true

require "open3"
require "rbconfig"
require_relative "row"

module Bench
  # Seconds of an empty loop of 50,000,000 turns, on the machine and the Ruby (3.1.2) of the figures that are published.
  CALIBRATION = 0.49
  TURNS = 50_000_000

  # The contestants of a row, each in a process of its own, turn by turn. Of several rounds the median counts.
  class Race
    Result = Struct.new(:row, :original, :replacement, :objects, :original_objects, :source, keyword_init: true) do
      # How many times as fast the replacement is, or by how much it uses less; nil without an original.
      def ratio
        original.fdiv(replacement) if original && row.measure == :time
      end

      # Whether the bar is reached; nil where none is set or nothing can tell.
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
      original = ORIGINALS.fetch(row.gem)
      runs = runs?(original, row)
      originals = []
      replacements = []
      loops = []
      @rounds.times do
        originals << contest(row, "original") if runs
        replacements << contest(row, "replacement")
        loops << calibrate if !runs && row.published && !@smoke
      end
      result = Result.new(row:, replacement: median(replacements.map(&:first)), objects: median(replacements.map(&:last)))
      judge_original(result, original, originals, loops)
      result
    end

    private

    # Whether the installed original can be raced: an old one needs a factor, unless it is its memory that is looked at.
    def runs?(original, row)
      original.installed && (original.newest? || row.factor || row.measure == :memory)
    end

    def judge_original(result, original, figures, loops)
      row = result.row
      result.original_objects = row.objects
      if figures.any?
        factor = original.newest? ? 1 : row.factor || 1
        result.original = median(figures.map(&:first)) / factor
        result.original_objects ||= median(figures.map(&:last))
        result.source = factor == 1 ? original.installed.to_s : "#{original.installed} ÷ #{factor}"
      elsif loops.any?
        result.original = row.published * 1e-9 * median(loops) / CALIBRATION
        result.source = "published"
      end
    end

    def contest(row, who)
      command = [RbConfig.ruby, File.join(__dir__, "contestant.rb"), row.name, who, *("smoke" if @smoke)]
      out, err, status = Open3.capture3(*command)
      raise "#{row.label}: #{who} failed\n#{err}" unless status.success?

      out.split.map { |figure| Float(figure) }
    end

    def calibrate
      began = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
      i = 0
      i += 1 while i < TURNS
      Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - began
    end

    def median(figures)
      figures.sort[figures.size / 2]
    end
  end
end
