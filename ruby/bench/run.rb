# frozen_string_literal: true

# `ruby bench/run.rb [--smoke] [--rounds N] [--markdown] [WORD…]`: races the replacements against the originals, all rows or
# those whose names contain one of the words. CPU time; the median of the rounds, and the
# ratio with its confidence interval. --smoke does everything once with little
# input, to see that it runs. Ends with 1 when a bar is missed.
#
# The output begins with the machine, its load and the data, and ends with the originals that are missing and the way to get them.
require "etc"
require "optparse"
require_relative "race"
require_relative "stories"
require_relative "traffic"

module Bench
  # Where and with what a run was made.
  module Setting
    module_function

    def lines
      ["Date: #{Time.now.utc.strftime("%Y-%m-%d")}; commit #{commit}",
       "Machine: #{cpu}, #{Etc.nprocessors} cores; load #{load}",
       "System: #{Etc.uname[:sysname]} #{Etc.uname[:release]}; #{RUBY_DESCRIPTION}",
       "HPACK: #{Stories.name}; firehose: #{Traffic.source}"]
    end

    def commit
      `git -C #{__dir__} rev-parse --short=10 HEAD 2>&1`.then { |out| $?.success? ? out.strip : "unknown" }
    end

    def cpu
      File.read("/proc/cpuinfo")[/^model name\s*: (.*)$/, 1] || RbConfig::CONFIG["host_cpu"]
    rescue Errno::ENOENT
      RbConfig::CONFIG["host_cpu"]
    end

    def load
      File.read("/proc/loadavg").split.first
    rescue Errno::ENOENT
      "unknown"
    end
  end

  # The results, a line each.
  class Report
    def initialize(markdown)
      @markdown = markdown
      @heads = ["workload", "original", "wireloom", "ratio [95 % interval]", "wanted", "objects, original / wireloom"]
      line(@heads)
      line(@heads.map { "---" }) if markdown
    end

    def add(result)
      row = result.row
      original = result.original ? "#{amount(row, result.original)} (#{result.version})" : "–"
      objects = [result.original_objects, result.objects].map { |count| count ? format("%.1f", count) : "–" }.join(" / ")
      line([label(row), original, replacement(result), ratio(result), bar(result), objects])
    end

    private

    # As the README has it, or by the name that selects it.
    def label(row)
      @markdown ? "#{row.gem.tr("_", "-")}: #{row.what}" : row.label
    end

    def ratio(result)
      return "–" unless result.ratio

      ratio = format("%.1f× [%.1f … %.1f]", result.ratio, *result.interval)
      result.difference? ? ratio : "#{ratio}, no difference shown"
    end

    def replacement(result)
      amount(result.row, result.replacement) + (result.row.measure == :memory ? "" : " per #{result.row.per}")
    end

    def bar(result)
      return "–" unless result.row.bar

      wanted = result.row.measure == :memory ? "≤ #{amount(result.row, result.row.bar)}" : "≥ #{result.row.bar}×"
      "#{wanted} #{{ true => "met", false => "missed", nil => "not measured" }[result.met?]}"
    end

    def amount(row, figure)
      return "#{(figure / 1024.0).round} KiB" if row.measure == :memory
      return format("%.1f KiB", figure / 1024.0) if row.measure == :held

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

  options = { rounds: 7 }
  words = OptionParser.new do |parser|
    parser.on("--smoke") { options[:smoke] = true }
    parser.on("--rounds N", Integer) { |rounds| options[:rounds] = rounds }
    parser.on("--markdown") { options[:markdown] = true }
  end.parse(ARGV)
  rows = ROWS.select { |row| words.empty? || words.any? { |word| row.name.include?(word) } }
  rows.reject! { |row| ORIGINALS.fetch(row.gem).then { |original| original.both? && !original.version } } unless words.any?
abort "no row is called so; there are #{ROWS.map(&:name).join(", ")}" if rows.empty?
  left_out, rows = rows.partition { |row| row.missing.any? }

  puts Setting.lines.map { |line| options[:markdown] ? "- #{line}" : line }, ""
  race = Race.new(rounds: options[:smoke] ? 1 : options[:rounds], smoke: options[:smoke])
  report = Report.new(options[:markdown])
  results = rows.map { |row| race.run(row).tap { |result| report.add(result) } }
  rows.map(&:gem).uniq.each do |gem|
    next if ORIGINALS.fetch(gem).version

    puts "missing: #{ORIGINALS.fetch(gem).name}. `gem install #{ORIGINALS.fetch(gem).name}`, or `./test newest` on Debian"
  end
  left_out.each { |row| puts "missing: #{row.missing.join(", ")} for #{row.label}" }
  exit options[:smoke] || results.none? { |result| result.met? == false }
end
