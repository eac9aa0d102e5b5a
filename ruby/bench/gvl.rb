# frozen_string_literal: true

# `ruby bench/gvl.rb`: how long messages around the thresholds take, from which length on the GVL is released, and what releasing it
# costs while no other thread runs and while one computes: then a call that released it waits for the end of a time slice, 100 ms, to get it
# back, unless it was finished before the other thread woke up. Alone, the shortest call is the work itself on a machine that other
# programs use too.
$LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
require_relative "statistics"
require_relative "../test/support/connections"

module Bench
  extend Wireloom::Connections

  CALLS = 60

  module_function

  # Microseconds of each call, in order.
  def microseconds(calls)
    Array.new(calls) do
      work = yield
      began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      work.call
      (Process.clock_gettime(Process::CLOCK_MONOTONIC) - began) * 1e6
    end.sort
  end

  # A line: the times without another thread and beside one that computes.
  def line(what, calls, &block)
    alone = microseconds(calls, &block)
    stop = false
    thread = Thread.new { 1 + 1 until stop }
    beside = microseconds(calls, &block)
    stop = true
    thread.join
    puts format("%-40s alone %7.1f µs, median %7.1f µs; beside a busy thread median %8.1f µs, at most %8.1f µs", what, alone.first,
                Statistics.median(alone), Statistics.median(beside), beside.last)
  end

  # Text whose masked frame has as many bytes.
  def text(kib)
    length = kib * 1024 - 14
    text = ("aé€😀" * (kib * 103)).byteslice(0, length).scrub("")
    text + "a" * (length - text.bytesize)
  end

  [128, 255, 256, 512].each do |kib|
    client, server = connected
    line("receive #{kib} KiB of masked text", CALLS) do
      client.text(text(kib))
      bytes = client.take_output
      abort "#{bytes.bytesize} bytes" unless bytes.bytesize == kib * 1024
      -> { server.receive(bytes) }
    end
  end
  [2, 3, 4, 8].each do |kib|
    client, server = connected(deflate: true)
    random = Random.new(1)
    # Hexadecimal digits deflate to a little more than half.
    line("receive #{kib} KiB of deflated text", CALLS) do
      client.text(random.bytes(kib * 1000).unpack1("H*"))
      bytes = client.take_output
      abort "#{bytes.bytesize} bytes" unless (bytes.bytesize >= 4096) == (kib >= 4)
      -> { server.receive(bytes) }
    end
    line("deflate #{kib} KiB of digits", CALLS) do
      message = random.bytes(kib * 512).unpack1("H*")
      client.take_output
      -> { client.text(message) }
    end
    line("deflate #{kib} KiB of JSON", CALLS) do
      message = Array.new(100) { |at| %({"id":#{random.rand(10**9)},"name":"item #{at}","tags":["a","b"]}) }.join(",")[0, kib * 1024]
      client.take_output
      -> { client.text(message) }
    end
  end
end
