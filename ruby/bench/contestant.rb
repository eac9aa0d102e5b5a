# frozen_string_literal: true

# `contestant.rb ROW original|replacement [smoke]`: does the work of one row with one library, and prints what it took for
# one of what the row counts: CPU seconds (or bytes, where memory is measured) and objects.
$LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
require_relative "row"

module Bench
  # CPU seconds that are measured, and that come before.
  MEASURED = 0.5
  WARM = 0.1

  module_function

  def cpu
    Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
  end

  # Works for a number of CPU seconds, at least once; returns how many were done, and the seconds.
  def work_for(seconds, work)
    count = 0
    began = cpu
    loop do
      count += work.call
      took = cpu - began
      return [count, took] if took >= seconds
    end
  end

  def measure_time(work, smoke)
    work_for(smoke ? 0 : WARM, work)
    GC.start
    objects = GC.stat(:total_allocated_objects)
    count, seconds = work_for(smoke ? 0 : MEASURED, work)
    [seconds / count, (GC.stat(:total_allocated_objects) - objects).fdiv(count)]
  end

  # Bytes of memory that the process holds.
  def resident
    2.times { GC.start }
    File.read("/proc/self/statm").split[1].to_i * 4096
  rescue Errno::ENOENT
    abort "memory is measured where /proc is"
  end

  def measure_memory(work, held:)
    work.call
    objects = GC.stat(:total_allocated_objects)
    before = resident
    count = Array.new(9) { work.call }.sum
    [(resident - before).fdiv(held ? count : 1), (GC.stat(:total_allocated_objects) - objects).fdiv(count)]
  end

  name, who, smoke = ARGV
  row = ROWS.find { |candidate| candidate.name == name } or abort "no row #{name}"
  features = who == "original" ? ORIGINALS.fetch(row.gem).features : ["wireloom/drop_in/#{row.gem}"]
  features.each { |feature| require feature }
  work = row.work.call(Contestant.new(row, who == "original", smoke))
  figures = row.measure == :time ? measure_time(work, smoke) : measure_memory(work, held: row.measure == :held)
  puts figures.join(" ")
end
