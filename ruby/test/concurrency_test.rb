# frozen_string_literal: true

require_relative "test_helper"
require "support/connections"
require "support/turns"

# The rules of guides/concurrency.md for threads, fiber schedulers and Ractors.
class ConcurrencyTest < Wireloom::TestCase
  include Wireloom::Connections
  include Wireloom::Turns

  def test_other_threads_run_while_a_message_is_inflated
    client, server = connected(deflate: true)
    ran = 5.times.any? do
      client.binary("a" * (48 << 20))
      bytes = client.take_output
      received = nil
      count = turns { received = server.receive(bytes) }
      assert_equal 48 << 20, received.first.bytesize
      count >= 5
    end
    assert ran
  end

  def test_other_threads_run_while_a_message_is_deflated
    client, = connected(deflate: true)
    message = Random.new(1).bytes(8 << 20).unpack1("H*")
    assert(5.times.any? { turns { client.text(message) } >= 5 })
  end

  def test_other_threads_run_while_a_message_is_unmasked
    client, server = connected
    client.text("é" * (4 << 20))
    bytes = client.take_output
    assert(others_run? { assert_equal 8 << 20, server.receive(bytes).first.bytesize })
  end

  # The guide states the lengths from which on the lock is released.
  def test_the_guide_states_the_thresholds
    source = File.read(File.expand_path("../ext/wireloom/src/exclusive.rs", __dir__))
    guide = File.read(File.expand_path("../guides/concurrency.md", __dir__))
    { "UNMASK" => "input of %d KiB or more to one call", "DEFLATE" => "messages of %d KiB or more that are compressed" }.each do |name, words|
      kib = Integer(source[/DETACHED_#{name}_LEN: usize = (\d+) << 10;/, 1])
      assert_includes guide, format(words, kib)
    end
  end

  def test_a_small_message_keeps_the_lock
    client, server = connected
    client.text("a" * 1000)
    bytes = client.take_output
    other = false
    thread = Thread.new { Thread.stop; other = true }
    Thread.pass until thread.stop?
    thread.wakeup
    server.receive(bytes)
    refute other
    thread.join
  end

  def test_threads_may_share_a_connection
    client, server = connected(deflate: true)
    big = "b" * (8 << 20)
    threads = Array.new(4) do |at|
      Thread.new { 5.times { at.zero? ? client.binary(big) : client.text("message #{at}") } }
    end
    threads.each(&:join)
    messages = received(server, client.take_output)
    assert_equal [5, 15], [messages.count(big), messages.grep(/\Amessage/).size]
  end

  def test_a_thread_that_receives_and_one_that_sends
    client, server = connected(deflate: true)
    4.times { client.binary("c" * (8 << 20)) }
    bytes = client.take_output
    receiver = Thread.new { received(server, bytes) }
    50.times { server.text("meanwhile") }
    assert_equal 4, receiver.value.size
    assert_equal 50, client.receive(server.take_output).size
  end

  def test_a_thread_that_is_killed_leaves_the_connection_usable
    client, server = connected(deflate: true)
    client.binary("d" * (32 << 20))
    bytes = client.take_output
    thread = Thread.new { server.receive(bytes) }
    Thread.pass
    thread.kill
    thread.join
    server.text("still here")
    assert_equal ["still here"], client.receive(server.take_output)
  end

  def test_connections_in_ractors
    needs_sound_ractors
    ractors = Array.new(4) do
      Ractor.new do
        client = Wireloom::WebSocket::Client.new("ws://x", deflate: true)
        server = Wireloom::WebSocket::Server.new(deflate: true)
        server.receive(client.take_output)
        server.accept
        client.receive(server.take_output)
        client.binary("e" * (2 << 20))
        server.receive(client.take_output).first.bytesize
      end
    end
    assert_equal [2 << 20] * 4, ractors.map { |ractor| ractor.respond_to?(:value) ? ractor.value : ractor.take }
  end

  def test_fibers_take_turns_between_calls
    client, server = connected
    seen = []
    fibers = Array.new(3) do |at|
      Fiber.new do
        3.times do |turn|
          client.text("#{at}.#{turn}")
          Fiber.yield
        end
      end
    end
    3.times { fibers.each(&:resume) }
    server.receive(client.take_output).each { |message| seen << message }
    assert_equal 9, seen.uniq.size
  end

  def test_http2_commands_from_several_threads
    client = Wireloom::HTTP2::Client.new
    server = Wireloom::HTTP2::Server.new
    headers = [[":method", "GET"], [":scheme", "https"], [":authority", "x"], [":path", "/"]]
    Array.new(4) { Thread.new { 20.times { client.request(headers, end_stream: true) } } }.each(&:join)
    assert_equal 80, server.receive(client.take_output).grep(Wireloom::HTTP2::Request).map(&:stream).uniq.size
  end
end
