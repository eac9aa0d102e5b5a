# frozen_string_literal: true

require "open3"
require "rbconfig"
require_relative "row"

module Bench
  # The contestants of a row, each in a process of its own, turn by turn. Of several rounds the median counts.
  class Race
    Result = Struct.new(:row, :version, :original, :replacement, :original_objects, :objects, keyword_init: true) do
      # How many times as fast the replacement is; nil without an original.
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
      version = ORIGINALS.fetch(row.gem).version
      originals = []
      replacements = []
      @rounds.times do
        originals << contest(row, "original") if version
        replacements << contest(row, "replacement")
      end
      original, original_objects = medians(originals)
      replacement, objects = medians(replacements)
      Result.new(row:, version:, original:, original_objects:, replacement:, objects:)
    end

    private

    def contest(row, who)
      arguments = who == "original" ? ORIGINALS.fetch(row.gem).arguments : []
      command = [RbConfig.ruby, *arguments, File.join(__dir__, "contestant.rb"), row.name, who, *("smoke" if @smoke)]
      out, err, status = Open3.capture3(*command)
      raise "#{row.label}: #{who} failed\n#{err}" unless status.success?

      out.split.map { |figure| Float(figure) }
    end

    def medians(figures)
      figures.transpose.map { |column| column.sort[column.size / 2] }
    end
  end
end
