# frozen_string_literal: true

# `ruby bench/run.rb [--smoke] [--rounds N] [--markdown] [WORD…]`: races the replacements against the originals, all rows or
# those whose names contain one of the words. CPU time; the median of the rounds. --smoke does everything once with little
# input, to see that it runs. Ends with 1 when a bar is missed.
require "optparse"
require_relative "race"

module Bench
  # What was found, a line each.
  class Report
    def initialize(markdown)
      @markdown = markdown
      @heads = ["workload", "original", "wireloom", "ratio", "wanted", "objects, original / wireloom"]
      line(@heads)
      line(@heads.map { "---" }) if markdown
    end

    def add(result)
      row = result.row
      original = result.original ? "#{amount(row, result.original)} (#{result.version})" : "–"
      ratio = result.ratio ? format("%.1f×", result.ratio) : "–"
      objects = [result.original_objects, result.objects].map { |count| count ? format("%.1f", count) : "–" }.join(" / ")
      line([label(row), original, replacement(result), ratio, bar(result), objects])
    end

    private

    # As the README has it, or by the name that selects it.
    def label(row)
      @markdown ? "#{row.gem.tr("_", "-")}: #{row.what}" : row.label
    end

    def replacement(result)
      amount(result.row, result.replacement) + (result.row.measure == :memory ? "" : " per #{result.row.per}")
    end

    def bar(result)
      return "–" unless result.row.bar

      wanted = result.row.measure == :memory ? "≤ #{amount(result.row, result.row.bar)}" : "≥ #{result.row.bar}×"
      "#{wanted} #{{ true => "met", false => "missed", nil => "not judged" }[result.met?]}"
    end

    def amount(row, figure)
      return "#{(figure / 1024.0).round} KiB" if row.measure == :memory

      nanoseconds = figure * 1e9
      if nanoseconds < 10_000 then "#{nanoseconds.round} ns"
      elsif nanoseconds < 10_000_000 then format("%.1f µs", nanoseconds / 1e3)
      else format("%.1f ms", nanoseconds / 1e6)
      end
    end

    def line(cells)
      puts @markdown ? "| #{cells.join(" | ")} |" : cells.join("  ")
      $stdout.flush
    end
  end

  options = { rounds: 5 }
  words = OptionParser.new do |parser|
    parser.on("--smoke") { options[:smoke] = true }
    parser.on("--rounds N", Integer) { |rounds| options[:rounds] = rounds }
    parser.on("--markdown") { options[:markdown] = true }
  end.parse(ARGV)
  rows = ROWS.select { |row| words.empty? || words.any? { |word| row.name.include?(word) } }
  abort "no row is called so; there are #{ROWS.map(&:name).join(", ")}" if rows.empty?

  race = Race.new(rounds: options[:smoke] ? 1 : options[:rounds], smoke: options[:smoke])
  report = Report.new(options[:markdown])
  results = rows.map { |row| race.run(row).tap { |result| report.add(result) } }
  exit options[:smoke] || results.none? { |result| result.met? == false }
end
