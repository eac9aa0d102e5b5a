# frozen_string_literal: true

require_relative "../test_helper"
original_or_drop_in "websocket_driver", "websocket/driver"
require_needed "concurrent", "action_cable", "puma", "puma/server"
require "action_cable/engine" if defined?(Rails::Engine)
require "json"
require "logger"
require "socket"
require "timeout"
require_relative "../support/puma"

# Action Cable as it is, on top: its server in Puma, and a client made of the driver itself.
class ActionCableTest < Wireloom::TestCase
  class Connection < ActionCable::Connection::Base
    identified_by :name

    def connect
      self.name = request.params[:name] || reject_unauthorized_connection
    end
  end

  class RoomChannel < ActionCable::Channel::Base
    def subscribed
      stream_from "room"
    end

    def speak(data)
      ActionCable.server.broadcast("room", { "from" => name, "text" => data["text"] })
    end
  end

  def self.port
    @port ||= begin
      config = ActionCable.server.config
      config.cable = { "adapter" => "async" }
      config.connection_class = -> { Connection }
      config.logger = Logger.new(IO::NULL)
      config.disable_request_forgery_protection = true
      Wireloom::QuietPuma.serve(ActionCable.server)
    end
  end

  # A client of Action Cable over TCP.
  class Client
    attr_reader :url, :driver

    def initialize(port, query)
      @url = "ws://127.0.0.1:#{port}/?#{query}"
      @socket = TCPSocket.new("127.0.0.1", port)
      @driver = WebSocket::Driver.client(self, protocols: ["actioncable-v1-json"])
      @seen = []
      @driver.on(:message) { |event| @seen << JSON.parse(event.data) }
      @driver.on(:close) { |event| @seen << { "type" => "close", "code" => event.code } }
      @driver.start
    end

    def write(bytes)
      @socket.write(bytes)
    end

    def command(**command)
      @driver.text(JSON.generate(command))
    end

    # The next message that is not a ping.
    def receive
      Timeout.timeout(20) do
        loop do
          message = @seen.shift
          return message if message && message["type"] != "ping"

          @driver.parse(@socket.readpartial(4096)) unless message
        end
      end
    end

    def close
      @socket.close
    end
  end

  def connect(query)
    client = Client.new(self.class.port, query)
    (@clients ||= []) << client
    client
  end

  def teardown
    @clients&.each(&:close)
  end

  def test_members_of_a_room_hear_each_other
    room = JSON.generate(channel: "ActionCableTest::RoomChannel")
    anna, ben = %w[Anna Ben].map do |name|
      client = connect("name=#{name}")
      assert_equal({ "type" => "welcome" }, client.receive)
      assert_equal "actioncable-v1-json", client.driver.protocol
      client.command(command: "subscribe", identifier: room)
      assert_equal({ "identifier" => room, "type" => "confirm_subscription" }, client.receive)
      client
    end
    text = "grün " * 2000
    anna.command(command: "message", identifier: room, data: JSON.generate(action: "speak", text: text))
    [anna, ben].each do |client|
      assert_equal({ "identifier" => room, "message" => { "from" => "Anna", "text" => text } }, client.receive)
    end
    ben.driver.close
    assert_equal 1000, ben.receive["code"]
  end

  def test_strangers_are_sent_away
    assert_equal({ "type" => "disconnect", "reason" => "unauthorized", "reconnect" => false }, connect("").receive)
  end
end
