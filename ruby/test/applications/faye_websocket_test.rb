# frozen_string_literal: true

require_relative "../test_helper"
original_or_drop_in "websocket_driver", "websocket/driver"
require_needed "faye/websocket", "puma", "puma/server", "timeout"
require_relative "../support/puma"

# faye-websocket as it is, on top: its server in Puma, its client, and both in EventMachine's loop.
class FayeWebSocketTest < Wireloom::TestCase
  def self.before_all
    @before_all ||= begin
      Thread.new { EM.run }
      sleep 0.01 until EM.reactor_running?
      Faye::WebSocket.load_adapter("puma") if Faye::WebSocket.const_defined?(:ADAPTERS)
      Minitest.after_run { EM.stop }
      Wireloom::QuietPuma.serve(method(:serve))
    end
  end

  def self.serve(env)
    return [200, { "Content-Type" => "text/plain" }, ["plain"]] unless Faye::WebSocket.websocket?(env)

    socket = Faye::WebSocket.new(env, ["chat"])
    socket.on(:message) do |event|
      case event.data
      when "close" then socket.close(4001, "as asked")
      when "array" then socket.send([0, 255])
      else socket.send(event.data)
      end
    end
    socket.rack_response
  end

  # The events of a client that sends +messages+ and closes after it has received +count+ messages.
  def conversation(*messages, count: messages.size, protocols: ["chat"])
    seen = Queue.new
    url = "ws://127.0.0.1:#{self.class.before_all}/"
    EM.schedule do
      client = Faye::WebSocket::Client.new(url, protocols)
      received = 0
      client.on(:open) do
        seen << [:open, client.protocol]
        messages.each { |message| client.send(message) }
      end
      client.on(:message) do |event|
        seen << [:message, event.data]
        client.close(1000, "done") if (received += 1) == count
      end
      client.on(:error) { |event| seen << [:error, event.message] }
      client.on(:close) { |event| seen << [:close, event.code, event.reason] }
    end
    events = []
    Timeout.timeout(20) { events << seen.pop until events.last&.first == :close }
    events
  end

  def test_text_comes_back
    long = "ä" * 70_000
    assert_equal [[:open, "chat"], [:message, "häßlich"], [:message, long], [:close, 1000, "done"]], conversation("häßlich", long)
  end

  def test_binary_is_a_string
    events = conversation("array")
    # Before 0.8 the original has no other form than an Array.
    binary = ORIGINAL && events[1][1].is_a?(Array) ? [0, 255] : "\x00\xff".b
    assert_equal [:message, binary], events[1]
  end

  def test_the_server_closes
    assert_equal [[:open, "chat"], [:close, 4001, "as asked"]], conversation("close", count: 9)
  end

  def test_pages_are_served_beside
    require "net/http"
    assert_equal "plain", Net::HTTP.get(URI("http://127.0.0.1:#{self.class.before_all}/"))
  end
end
