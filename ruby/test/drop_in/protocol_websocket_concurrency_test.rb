# frozen_string_literal: true

require_relative "../test_helper"
original_or_drop_in "protocol_websocket", "protocol/websocket"
require "protocol/websocket/connection"
require "protocol/websocket/message"
# The original's frames need it, and only its headers require it.
require "securerandom"
require_relative "../support/scheduler"
require_relative "../support/turns"
require "socket"
require "stringio"

# Framers and connections under threads, a fiber scheduler and Ractors, as guides/concurrency.md describes them.
class ProtocolWebSocketConcurrencyTest < Wireloom::TestCase
  include Wireloom::Turns

  WS = Protocol::WebSocket

  def connections
    @sockets = UNIXSocket.pair
    @sockets.each_with_index.map { |socket, at| WS::Connection.new(WS::Framer.new(socket), mask: at.zero?) }
  end

  def teardown
    @sockets&.each(&:close)
  end

  def test_one_thread_reads_and_one_writes
    client, server = connections
    echo = Thread.new do
      while (message = server.read)
        server.write(message)
        server.flush
      end
    end
    texts = Array.new(300) { |at| "message #{at} " + "é" * (at % 50) }
    writer = Thread.new do
      texts.each { |text| client.send_text(text) }
      client.send_binary("b" * 300_000)
      client.flush
    end
    # Else the test would wait for a thread that has failed.
    [echo, writer].each { |thread| thread.abort_on_exception = true }
    assert_equal texts, Array.new(300) { client.read.buffer }
    assert_equal 300_000, client.read.size
    writer.join
    client.send_close
    assert_nil client.read
    echo.join
  end

  def test_a_thread_that_is_killed_while_it_reads_leaves_the_others_alone
    client, server = connections
    reader = Thread.new { server.read }
    Thread.pass until reader.stop?
    reader.kill
    reader.join
    client.send_text("still here")
    client.flush
    assert_equal "still here", server.read.buffer
  end

  def test_other_threads_run_while_a_message_is_unmasked
    gap_of_the_original
    bytes = StringIO.new("".b)
    client = WS::Connection.new(WS::Framer.new(bytes), mask: true)
    client.send_text("é" * (4 << 20))
    # Not a StringIO, whose String another thread could change.
    stream = Object.new
    stream.define_singleton_method(:read) { |length| bytes.read(length) }
    stream.define_singleton_method(:flush) {}
    server = WS::Connection.new(WS::Framer.new(stream), maximum_message_size: nil)
    read = lambda do
      bytes.rewind
      assert_equal 8 << 20, server.read.buffer.bytesize
    end
    assert others_run?(&read)
  end

  def test_fibers_of_a_scheduler
    pairs = Array.new(3) { UNIXSocket.pair }
    results = []
    before = Scheduler.waits
    servers = pairs.map do |_, peer|
      lambda do
        server = WS::Connection.new(WS::Framer.new(peer))
        while (message = server.read)
          server.send_text(message.buffer.upcase)
        end
      end
    end
    clients = pairs.each_with_index.map do |(own, _), at|
      lambda do
        client = WS::Connection.new(WS::Framer.new(own), mask: true)
        3.times do |turn|
          client.send_text("#{at}.#{turn} häßlich")
          client.flush
          results << client.read.buffer
        end
        client.send_close
        client.read
      end
    end
    Scheduler.run(*servers, *clients)
    assert_equal 9, results.uniq.size
    assert(results.all? { |text| text.end_with?(" HÄSSLICH") })
    # Not one fiber after another.
    refute_equal results.sort, results
    assert_operator Scheduler.waits - before, :>=, 6
  ensure
    pairs&.flatten&.each(&:close)
  end

  def test_connections_in_ractors
    needs_sound_ractors
    gap_of_the_original
    ractors = Array.new(4) do |at|
      Ractor.new(at) do |number|
        ours, theirs = UNIXSocket.pair
        client = Protocol::WebSocket::Connection.new(Protocol::WebSocket::Framer.new(ours), mask: true)
        server = Protocol::WebSocket::Connection.new(Protocol::WebSocket::Framer.new(theirs))
        5.times { |turn| client.send_text("#{number}.#{turn}") }
        client.flush
        Array.new(5) { server.read.buffer }
      end
    end
    results = ractors.map { |ractor| ractor.respond_to?(:value) ? ractor.value : ractor.take }
    assert_equal(Array.new(4) { |at| Array.new(5) { |turn| "#{at}.#{turn}" } }, results)
  end
end
