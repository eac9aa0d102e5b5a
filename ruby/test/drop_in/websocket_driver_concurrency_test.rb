# frozen_string_literal: true

require_relative "websocket_driver_helper"
require_relative "../support/scheduler"
require "socket"

# Drivers under threads, a fiber scheduler and Ractors, as guides/concurrency.md describes them.
class WebSocketDriverConcurrencyTest < Wireloom::TestCase
  include WebSocketDriverHelper

  # A client and a server that are open, and their sockets.
  def connected
    client_socket = ClientSocket.new(url: "ws://x/")
    client = Driver.client(client_socket)
    server_socket = ClientSocket.new
    server = Driver.server(server_socket)
    server.on(:connect) { server.start }
    client.start
    server.parse(client_socket.take)
    client.parse(server_socket.take)
    [client, client_socket, server, server_socket]
  end

  def test_several_threads_send
    client, socket, server, = connected
    received = Queue.new
    server.on(:message) { |event| received << event.data }
    Array.new(4) do |at|
      Thread.new do
        50.times { |turn| client.text("#{at}.#{turn} " + "x" * 200) && Thread.pass }
      end
    end.each(&:join)
    server.parse(socket.take)
    assert_equal 200, received.size
    seen = Array.new(200) { received.pop[/\A\S+/] }
    assert_equal 200, seen.uniq.size
    4.times { |at| assert_equal Array.new(50) { |turn| "#{at}.#{turn}" }, seen.grep(/\A#{at}\./) }
  end

  def test_one_thread_receives_while_another_sends
    client, client_socket, server, server_socket = connected
    server.on(:message) { |event| server.text(event.data) }
    received = []
    client.on(:message) { |event| received << event.data.bytesize }
    big = "é" * (1 << 20)
    client.text(big)
    wire = client_socket.take
    reader = Thread.new { server.parse(wire) }
    20.times { server.text("meanwhile") && Thread.pass }
    reader.join
    client.parse(server_socket.take)
    assert_equal [9] * 20 + [2 << 20], received.sort
  end

  # Another thread takes over at each call that the first one makes.
  def test_several_threads_receive
    gap_of_the_original
    [true, false].each do |overridden|
      calls = at = 0
      while at <= calls
        driver = watch(Driver::Hybi.new(Socket.new(env: ENVIRONMENT), require_masking: true))
        driver.define_singleton_method(:emit) { |*arguments| super(*arguments) } if overridden
        driver.start
        at += 1
        calls = 0
        trace = TracePoint.new(:call, :c_call, :return, :c_return) do
          calls += 1
          next unless calls == at

          Thread.new { driver.parse("\x89\x85\0\0\0\0other\x82\x81\0\0\0\0b".b) }.join
        end
        trace.enable(target_thread: Thread.current) { driver.parse("\x89\x85\0\0\0\0first\x82\x81\0\0\0\0a\x8a\x80\0\0\0\0".b) }
        assert_equal [], @events.map(&:first) - %i[open ping message pong]
        pings, messages = %i[ping message].map { |name| @events.select { |event| event[0] == name }.map(&:last) }
        assert_includes [%w[first], %w[first other], %w[other first]], pings
        assert_includes [%w[a], %w[a b], %w[b a]], messages
        assert_equal pings.size, messages.size
      end
      assert_operator calls, :>, 5
    end
  end

  def test_fibers_of_a_scheduler
    results = Array.new(3) { [] }
    pairs = Array.new(3) { UNIXSocket.pair }
    servers = pairs.map do |_, peer|
      lambda do
        socket = Struct.new(:io) { def write(bytes) = io.write(bytes) }.new(peer)
        server = Driver.server(socket)
        server.on(:connect) { server.start }
        server.on(:message) { |event| server.text(event.data.upcase) }
        server.on(:close) { peer.close_write }
        drive(server, peer)
      end
    end
    clients = pairs.each_with_index.map do |(own, _), at|
      lambda do
        socket = Struct.new(:io, :url) { def write(bytes) = io.write(bytes) }.new(own, "ws://x/")
        client = Driver.client(socket)
        client.on(:open) { client.text("hello #{at}") }
        client.on(:message) do |event|
          results[at] << event.data
          results[at].size < 3 ? client.text("again #{at}") : client.close
        end
        client.on(:close) { own.close_write }
        client.start
        drive(client, own)
      end
    end
    Scheduler.run(*servers, *clients)
    assert_equal Array.new(3) { |at| ["HELLO #{at}", "AGAIN #{at}", "AGAIN #{at}"] }, results
  ensure
    pairs&.flatten&.each(&:close)
  end

  # Parses what arrives until the stream ends.
  def drive(driver, io)
    loop { driver.parse(io.readpartial(64)) }
  rescue EOFError
    nil
  end

  def test_connections_in_ractors
    needs_sound_ractors
    gap_of_the_original
    ractors = Array.new(4) do |at|
      Ractor.new(at) do |number|
        written = String.new
        socket = Struct.new(:written, :url) { def write(bytes) = written << bytes }
        client = WebSocket::Driver.client(socket.new(to_server = String.new, "ws://x/"))
        server = WebSocket::Driver.server(socket.new(to_client = String.new, nil))
        server.on(:connect) { server.start }
        server.on(:message) { |event| server.text("#{event.data}!") }
        client.on(:message) { |event| written << event.data }
        client.start
        server.parse(to_server.slice!(0..))
        client.parse(to_client.slice!(0..))
        5.times { |turn| client.text("#{number}.#{turn}") }
        server.parse(to_server.slice!(0..))
        client.parse(to_client.slice!(0..))
        written
      end
    end
    results = ractors.map { |ractor| ractor.respond_to?(:value) ? ractor.value : ractor.take }
    assert_equal(Array.new(4) { |at| Array.new(5) { |turn| "#{at}.#{turn}!" }.join }, results)
  end
end
