# frozen_string_literal: true

require_relative "../test_helper"
original_or_drop_in "protocol_websocket", "protocol/websocket"
require_needed "async", "async/http", "async/http/endpoint", "async/http/server", "async/websocket", "async/websocket/client",
               "async/websocket/adapters/http"

Warning[:deprecated] = false # what async-websocket uses

# async-websocket as it is, on top: its client and its server, over HTTP/1.1 and over HTTP/2 (RFC 8441), compressed and not.
class AsyncWebSocketTest < Wireloom::TestCase
  WS = Protocol::WebSocket
  PROTOCOLS = [Async::HTTP::Protocol::HTTP11, Async::HTTP::Protocol::HTTP2].freeze

  # The server's connection: most messages are echoed.
  class Connection < Async::WebSocket::Connection
    # Names that an application may well take.
    def accept(message)
      message.buffer.start_with?("refuse") ? raise(ArgumentError, "refused") : message
    end

    def validate
      true
    end
  end

  # Serves while the block runs, once over each protocol, and yields an endpoint for clients.
  def serve(extensions: -> { WS::Extensions::Server.default }, app: nil, &block)
    app ||= ->(request) { answer(request, extensions.call) }
    PROTOCOLS.each do |protocol|
      Async do |task|
        task.with_timeout(20) do
          endpoint = Async::HTTP::Endpoint.parse("http://127.0.0.1:0/", protocol: protocol)
          bound = endpoint.bound
          server = Async::HTTP::Server.new(app, bound, protocol: protocol, scheme: "http")
          running = server.run
          port = bound.sockets.first.to_io.local_address.ip_port
          block.call(Async::HTTP::Endpoint.parse("http://127.0.0.1:#{port}/chat?room=1", protocol: protocol))
        ensure
          running&.stop
          bound&.close
        end
      end.wait
    end
  end

  def answer(request, extensions)
    opened = Async::WebSocket::Adapters::HTTP.open(request, protocols: ["chat"], handler: Connection, extensions: extensions) do |connection|
      while (message = connection.read)
        case message.buffer
        when "close" then connection.close(4001, "as asked")
        when "many" then 100.times { |at| connection.send_text("message #{at}") }
        when "path" then connection.write(request.path)
        else connection.write(connection.accept(message))
        end
        connection.flush
      end
    rescue ArgumentError
      connection.close(1008, "policy")
    rescue WS::ProtocolError, EOFError
      # The client's fault, and over.
    end
    opened || Protocol::HTTP::Response[200, { "content-type" => "text/plain" }, ["plain"]]
  end

  def ask(connection, message)
    connection.write(message)
    connection.flush
    connection.read
  end

  def test_messages_come_back
    serve do |endpoint|
      Async::WebSocket::Client.connect(endpoint, protocols: ["other", "chat"]) do |connection|
        assert_equal "chat", connection.protocol
        # Compressing an empty one after others raises in the original.
        ["häßlich", *("" unless ORIGINAL), "x" * 200, "ä" * 100_000].each do |text|
          message = ask(connection, text)
          assert_instance_of WS::TextMessage, message
          assert_equal text, message.buffer
          assert_equal Encoding::UTF_8, message.encoding
        end
        bytes = Random.new(7).bytes(200_000)
        message = ask(connection, bytes)
        assert_instance_of WS::BinaryMessage, message
        assert_equal bytes, message.buffer
        assert_equal "/chat?room=1", ask(connection, "path").buffer
        assert_equal({ a: [1] }, ask(connection, WS::TextMessage.generate({ a: [1] })).to_h)
        connection.write("many")
        connection.flush
        assert_equal Array.new(100) { |at| "message #{at}" }, Array.new(100) { connection.read.buffer }
      end
    end
  end

  def test_compression_is_agreed_on
    { {} => [15, true, 15, true],
      { client_no_context_takeover: true, client_max_window_bits: 12, server_max_window_bits: 9 } => [12, false, 9, true],
      { server_no_context_takeover: true, client_max_window_bits: 8, server_max_window_bits: 13 } => [9, true, 13, false] }.each do |options, agreed|
      serve do |endpoint|
        offered = WS::Extensions::Client.new([[WS::Extension::Compression, options]])
        Async::WebSocket::Client.connect(endpoint, extensions: offered) do |connection|
          writer, reader = connection.writer, connection.reader
          assert_instance_of WS::Extension::Compression::Deflate, writer
          assert_instance_of WS::Extension::Compression::Inflate, reader
          assert_equal agreed, [writer.window_bits, writer.context_takeover, reader.window_bits, reader.context_takeover]
          3.times { assert_equal "grün " * 5000, ask(connection, "grün " * 5000).buffer }
          connection.send_binary("\xFF".b * 50_000, compress: true)
          connection.flush
          assert_equal "\xFF".b * 50_000, connection.read.buffer
          connection.send_text("plain", compress: false)
          connection.flush
          assert_equal "plain", connection.read.buffer
        end
      end
    end
  end

  def test_without_extensions
    serve(extensions: -> {}) do |endpoint|
      Async::WebSocket::Client.connect(endpoint) do |connection|
        assert_same connection, connection.reader
        assert_equal "Hello", ask(connection, "Hello").buffer
      end
    end
    serve do |endpoint|
      Async::WebSocket::Client.connect(endpoint, extensions: nil) { |connection| assert_equal "Hello", ask(connection, "Hello").buffer }
    end
  end

  def test_pings_and_fragments
    serve do |endpoint|
      Async::WebSocket::Client.connect(endpoint, extensions: nil) do |connection|
        connection.write_frame(WS::TextFrame.new(false, mask: true).pack("gr\xC3"))
        connection.send_ping("are you there")
        connection.write_frame(WS::ContinuationFrame.new(true, mask: true).pack("\xBCn"))
        connection.flush
        pong = connection.read_frame
        assert_instance_of WS::PongFrame, pong
        assert_equal "are you there", pong.unpack
        assert_equal "grün", connection.read.buffer
      end
    end
  end

  def test_closing
    serve do |endpoint|
      Async::WebSocket::Client.connect(endpoint) do |connection|
        error = assert_raises(WS::ClosedError) { ask(connection, "close") }
        assert_equal [4001, "as asked"], [error.code, error.message]
        assert connection.closed?
      end
      Async::WebSocket::Client.connect(endpoint) do |connection|
        assert_equal 1008, assert_raises(WS::ClosedError) { ask(connection, "refuse me") }.code
      end
      Async::WebSocket::Client.connect(endpoint) do |connection|
        connection.shutdown
        assert_nil connection.read
      end
    end
  end

  def test_many_at_once
    serve do |endpoint|
      clients = Array.new(20) do |at|
        Async do
          Async::WebSocket::Client.connect(endpoint) { |connection| Array.new(5) { |turn| ask(connection, "#{at}: #{turn}").buffer } }
        end
      end
      assert_equal Array.new(20) { |at| Array.new(5) { |turn| "#{at}: #{turn}" } }, clients.map(&:wait)
    end
  end

  def test_as_a_rack_application
    begin
      require "async/websocket/adapters/rack"
    rescue LoadError => e
      limited e.message
    end
    rack = lambda do |env|
      opened = Async::WebSocket::Adapters::Rack.open(env, protocols: ["chat"]) do |connection|
        while (message = connection.read)
          connection.write(message)
          connection.flush
        end
      end
      opened || [200, {}, ["plain"]]
    end
    serve(app: Protocol::Rack::Adapter.new(rack)) do |endpoint|
      Async::WebSocket::Client.connect(endpoint, protocols: ["chat"]) do |connection|
        assert_equal "chat", connection.protocol
        assert_equal "grün", ask(connection, "grün").buffer
        assert_equal "\xFF".b * 70_000, ask(connection, "\xFF".b * 70_000).buffer
      end
    end
  end

  def test_what_is_no_websocket
    serve do |endpoint|
      client = Async::HTTP::Client.new(endpoint)
      assert_equal "plain", client.get("/").read
      client.close
    end
  end
end
