# frozen_string_literal: true

# `ruby bench/gvl.rb`: how long messages around the thresholds take, from which length on the GVL is released, and what releasing it
# costs while no other thread runs and while one does. Each line is the median of the calls.
$LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
require_relative "statistics"
require_relative "../test/support/connections"

module Bench
  extend Wireloom::Connections

  module_function

  # Median microseconds of a call.
  def microseconds(calls)
    times = Array.new(calls) do
      work = yield
      began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      work.call
      (Process.clock_gettime(Process::CLOCK_MONOTONIC) - began) * 1e6
    end
    Statistics.median(times)
  end

  # A line: the times without another thread and beside one that computes.
  def line(what, calls, &block)
    alone = microseconds(calls, &block)
    stop = false
    thread = Thread.new { 1 + 1 until stop }
    beside = microseconds(calls, &block)
    stop = true
    thread.join
    puts format("%-46s %9.1f µs alone %9.1f µs beside a busy thread", what, alone, beside)
  end

  text = "aé€😀" * (1 << 17)
  [256, 511, 512, 1024].each do |kib|
    client, server = connected
    line("receive #{kib} KiB of masked text", 40) do
      client.text(text.byteslice(0, kib * 1024 - 20).scrub(""))
      bytes = client.take_output
      -> { server.receive(bytes) }
    end
  end
  [2, 3, 4, 8].each do |kib|
    client, server = connected(deflate: true)
    random = Random.new(1)
    line("receive #{kib} KiB of deflated text", 200) do
      client.text(random.bytes(kib * 1024 * 2).unpack1("H*")[0, kib * 1024 * 7 / 4])
      bytes = client.take_output
      -> { server.receive(bytes) }
    end
    line("deflate #{kib} KiB of text", 200) do
      message = random.bytes(kib * 512).unpack1("H*")
      client.take_output
      -> { client.text(message) }
    end
  end
end
