# frozen_string_literal: true

require_relative "../traffic"

module Bench
  # Drivers whose handshake is over, and what they are fed.
  module Drivers
    # The object that a driver writes to.
    class Socket
      attr_reader :written

      def initialize
        @written = "".b
      end

      def write(bytes)
        @written << bytes
      end
    end

    class ServerSocket < Socket
      def env
        { "REQUEST_METHOD" => "GET", "HTTP_CONNECTION" => "Upgrade", "HTTP_UPGRADE" => "websocket",
          "HTTP_SEC_WEBSOCKET_KEY" => "dGhlIHNhbXBsZSBub25jZQ==", "HTTP_SEC_WEBSOCKET_VERSION" => "13" }
      end
    end

    class ClientSocket < Socket
      def url
        "ws://localhost/"
      end
    end

    module_function

    # Without its C part, whose loading fails silently, the original masks in Ruby.
    def check_mask(contestant)
      contestant.check(!contestant.original || WebSocket::Mask.method(:mask).source_location.nil?, "the mask in C is not loaded")
    end

    def server(**options)
      WebSocket::Driver.rack(ServerSocket.new, options).tap(&:start)
    end

    def client(**options)
      socket = ClientSocket.new
      driver = WebSocket::Driver.client(socket, options)
      driver.start
      key = socket.written[/^Sec-WebSocket-Key: (.*)\r/, 1]
      driver.parse("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" \
                   "Sec-WebSocket-Accept: #{WebSocket::Driver::Hybi.generate_accept(key)}\r\n\r\n")
      driver
    end

    # Parses +chunks+, which hold this number of messages, of this number of bytes together.
    def deliver(contestant, driver, chunks, messages, bytes)
      received = size = 0
      driver.on(:message) do |event|
        received += 1
        data = event.data
        size += data.is_a?(Array) ? data.size : data.bytesize
      end
      driver.on(:close) { |event| raise "closed: #{event.code} #{event.reason}" }
      lambda do
        received = size = 0
        chunks.each { |chunk| driver.parse(chunk) }
        contestant.check(received == messages && size == bytes, "#{received} messages, #{size} bytes")
        messages
      end
    end

    # Events as a firehose brings them.
    def firehose(contestant, driver, mask:)
      events = Traffic.events.first(contestant.size(150, 2))
      wire = events.map { |event| Traffic.frame(:binary, event, mask:) }.join
      deliver(contestant, driver, Traffic.chunks(wire, 16_384), events.size, events.sum(&:bytesize))
    end
  end

  row "ws-driver/client", "5 KB binary events in 16 KiB chunks, client, :string",
      gem: "websocket_driver", per: "message", bar: 6 do |c|
    Drivers.firehose(c, Drivers.client(binary_data_format: :string), mask: false)
  end

  row "ws-driver/server", "5 KB binary events in 16 KiB chunks, server, masked, :string",
      gem: "websocket_driver", per: "message", bar: 5 do |c|
    Drivers.check_mask(c)
    Drivers.firehose(c, Drivers.server(binary_data_format: :string), mask: true)
  end

  row "ws-driver/array", "5 KB binary events in 16 KiB chunks, client, :array",
      gem: "websocket_driver", per: "message", bar: 3 do |c|
    Drivers.firehose(c, Drivers.client(binary_data_format: :array), mask: false)
  end

  row "ws-driver/200B", "200 B masked text in 64 KiB chunks, server",
      gem: "websocket_driver", per: "message", bar: 12 do |c|
    Drivers.check_mask(c)
    count = c.size(3_000, 10)
    wire = Traffic.frame(:text, "0123456789" * 20, mask: true) * count
    Drivers.deliver(c, Drivers.server, Traffic.chunks(wire, 65_536), count, count * 200)
  end

  row "ws-driver/one", "20 B masked text, a read each, server",
      gem: "websocket_driver", per: "message", bar: 6 do |c|
    Drivers.check_mask(c)
    count = c.size(3_000, 10)
    chunks = Array.new(count) { Traffic.frame(:text, "0123456789" * 2, mask: true) }
    Drivers.deliver(c, Drivers.server, chunks, count, count * 20)
  end

  { "ascii" => ["0123456789abcdef", 8], "multi-byte" => ["aé€😀ééé", 30] }.each do |kind, (unit, bar)|
    row "ws-driver/16MiB-#{kind}", "16 MiB masked text, #{kind}, in 64 KiB chunks, server",
        gem: "websocket_driver", per: "message", bar: bar do |c|
      Drivers.check_mask(c)
      bytes = c.size(16 << 20, 1 << 16)
      Drivers.deliver(c, Drivers.server, Traffic.chunks(Traffic.text(bytes, unit), 65_536), 1, bytes)
    end
  end
end
