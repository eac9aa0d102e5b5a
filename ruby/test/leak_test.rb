# frozen_string_literal: true

require_relative "test_helper"
require "open3"
require "rbconfig"

# Memory after the first 100,000 messages and after 1,000,000: in a process of its own, where nothing else allocates.
class LeakTest < Wireloom::TestCase
  MESSAGES = 1_000_000
  COMMON = <<~RUBY
    def resident
      GC.start
      File.read("/proc/self/statm").split[1].to_i * 4096
    end

    def run(count)
      (count / 1000).times { yield }
    end
  RUBY

  def assert_flat(script)
    skip "no /proc" unless File.exist?("/proc/self/statm")
    script = <<~RUBY
      #{COMMON}
      #{script}
      run(100_000, &work)
      before = resident
      run(#{MESSAGES}, &work)
      puts resident - before
    RUBY
    out, err, status = Open3.capture3(RbConfig.ruby, "-I#{File.expand_path("../lib", __dir__)}", "-e", script)
    assert status.success?, err
    # A byte a message would be 1 MB.
    assert_operator out.to_i, :<, 4 << 20
  end

  def test_connections
    assert_flat(<<~RUBY)
      require "wireloom"
      client = Wireloom::WebSocket::Client.new("ws://x", deflate: true)
      server = Wireloom::WebSocket::Server.new(deflate: true)
      server.receive(client.take_output)
      server.accept
      client.receive(server.take_output)
      work = lambda do
        900.times { |at| client.text("message \#{at}") }
        50.times { client.binary("\\xFF" * 3000) }
        50.times { client.ping("p") }
        server.receive(client.take_output)
        client.receive(server.take_output)
      end
    RUBY
  end

  def test_protocol_websocket
    assert_flat(<<~RUBY)
      require "wireloom/drop_in/protocol_websocket"
      include Protocol::WebSocket
      input = ("\\x81\\x851234abcde".b * 400 + "\\x01\\x01a\\x80\\x01b".b * 299 + ("\\x82\\x7e\\x0b\\xb8".b + "x" * 3000) * 300 +
               "\\x89\\x01p".b * 100 + "\\x81\\x01\\xFF".b).freeze
      # The frame goes through a method of the subclass, and no Pong is written.
      quiet = Class.new(Connection) { def receive_ping(frame) = frame.unpack }
      work = lambda do
        connection = quiet.new(Framer.new(StringIO.new(input)), mask: true)
        999.times { connection.read }
        begin
          connection.read
        rescue ProtocolError
          100.times { TextFrame.new(mask: true).pack("answer").unpack }
        end
      end
    RUBY
  end

  def test_drivers
    assert_flat(<<~RUBY)
      require "wireloom/drop_in/websocket_driver"
      socket = Struct.new(:env) { def write(bytes) = bytes }.new({ "REQUEST_METHOD" => "GET", "HTTP_CONNECTION" => "Upgrade",
        "HTTP_UPGRADE" => "websocket", "HTTP_SEC_WEBSOCKET_KEY" => "x", "HTTP_SEC_WEBSOCKET_VERSION" => "13" })
      driver = WebSocket::Driver::Hybi.new(socket, masking: true)
      driver.start
      driver.on(:message) { |event| raise "now and then" if event.data == "raise" }
      small = "\\x81\\x0512345".b * 997 + "\\x01\\x01a\\x80\\x01b\\x81\\x05raise\\x89\\x01p\\x82\\x7e\\x0b\\xb8".b + "x" * 3000
      work = lambda do
        begin
          driver.parse(small)
        rescue RuntimeError
          driver.parse("")
        end
        100.times { driver.text("answer") }
      end
    RUBY
  end
end
