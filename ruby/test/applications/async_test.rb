# frozen_string_literal: true

require_relative "../test_helper"
original_or_drop_in "protocol_websocket", "protocol/websocket"
require_needed "async", "socket"
require "protocol/websocket/connection"
require "protocol/websocket/message"

# Under Async's fiber scheduler: a fiber that waits for bytes lets the others run, in the native methods too.
class AsyncTest < Wireloom::TestCase
  WS = Protocol::WebSocket

  # Runs the block among fibers; fails when it takes too long.
  def among_fibers
    result = nil
    Async { |task| task.with_timeout(20) { result = yield task } }.wait
    result
  end

  def test_protocol_websocket_echoes_while_others_run
    ticks = 0
    received = among_fibers do |task|
      ours, theirs = UNIXSocket.pair
      ticking = task.async do
        loop do
          sleep 0.001
          ticks += 1
        end
      end
      task.async do
        server = WS::Connection.new(WS::Framer.new(theirs))
        while (message = server.read)
          sleep 0.002
          server.write(message)
          server.flush
        end
      end
      client = WS::Connection.new(WS::Framer.new(ours), mask: true)
      messages = Array.new(20) do |at|
        client.write("häßlich #{at}")
        client.flush
        client.read.buffer
      end
      client.send_close
      assert_nil client.read
      ticking.stop
      messages
    end
    assert_equal Array.new(20) { |at| "häßlich #{at}" }, received
    assert_operator ticks, :>, 10
  end

  def test_the_native_connection_echoes_while_others_run
    gap_of_the_original
    received = among_fibers do |task|
      ours, theirs = UNIXSocket.pair
      task.async { serve(theirs) }
      Array.new(3) { |at| task.async { at } }.each(&:wait)
      talk(ours)
    end
    assert_equal [["häßlich", "\x00\xff".b], 1000], received
  end

  def serve(socket)
    server = Wireloom::WebSocket::Server.new
    each_event(server, socket) do |event|
      case event
      when Wireloom::WebSocket::Request then server.accept
      when String then server.send(event)
      end
    end
    socket.close
  end

  def talk(socket)
    client = Wireloom::WebSocket::Client.new("ws://localhost/")
    socket.write(client.take_output)
    messages = []
    code = nil
    each_event(client, socket) do |event|
      case event
      when Wireloom::WebSocket::Open
        client.send("häßlich")
        client.send("\x00\xff".b)
      when String
        messages << event
        client.close if messages.size == 2
      when Wireloom::WebSocket::Close then code = event.code
      end
    end
    [messages, code]
  end

  def each_event(connection, socket, &block)
    loop do
      connection.receive(socket.readpartial(4096)).each(&block)
      out = connection.take_output
      socket.write(out) unless out.empty?
      break if connection.state == :closed
    end
  rescue EOFError
    nil
  end
end
