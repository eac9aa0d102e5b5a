# frozen_string_literal: true

require_relative "../test_helper"
original_or_drop_in "websocket_driver", "websocket/driver"

module WebSocketDriverHelper
  Driver = WebSocket::Driver
  # An original of before 0.8, which has neither `:binary_data_format` nor what was mended since.
  OLD = ORIGINAL && Gem::Specification.find_by_name("websocket-driver").version < Gem::Version.new("0.8")
  ENVIRONMENT = {
    "REQUEST_METHOD" => "GET",
    "HTTP_CONNECTION" => "Upgrade",
    "HTTP_UPGRADE" => "websocket",
    "HTTP_ORIGIN" => "http://www.example.com",
    "HTTP_SEC_WEBSOCKET_KEY" => "JFBCWHksyIpXV+6Wlq/9pw==",
    "HTTP_SEC_WEBSOCKET_VERSION" => "13"
  }.freeze
  KEY = [0x11, 0x22, 0x83, 0x44].freeze

  # The socket of a driver: it records writes, and has the request's `env` or the URL.
  class Socket
    attr_reader :written, :env
    attr_accessor :url

    def initialize(env: nil, url: nil)
      @written = []
      @env = env
      @url = url
    end

    def write(bytes)
      raise "not binary: #{bytes.encoding}" unless bytes.encoding == Encoding::BINARY || bytes.ascii_only?

      @written << bytes.dup
    end

    def respond_to_missing?(*)
      false
    end

    def bytes
      @written.join.bytes
    end

    # Takes what was written since the last time.
    def take
      @written.join.tap { @written.clear }
    end
  end

  class ClientSocket < Socket
    undef_method :env
  end

  # A driver whose events are kept in order.
  def watch(driver)
    @events = []
    driver.on(:open) { |event| @events << [:open, event] }
    driver.on(:message) { |event| @events << [:message, event.data] }
    driver.on(:ping) { |event| @events << [:ping, event.data] }
    driver.on(:pong) { |event| @events << [:pong, event.data] }
    driver.on(:error) { |error| @events << [:error, error.class, error.message] }
    driver.on(:close) { |event| @events << [:close, event.code, event.reason] }
    driver
  end

  def messages
    @events.select { |event, *| event == :message }.map(&:last)
  end

  def close_event
    @events.find { |event, *| event == :close }&.drop(1)
  end

  def error_message
    @events.find { |event, *| event == :error }&.last
  end

  def hybi(env = {}, **options)
    @socket = Socket.new(env: ENVIRONMENT.merge(env))
    watch(Driver::Hybi.new(@socket, options))
  end

  def open_hybi(**options)
    hybi(**options).tap do |driver|
      driver.start
      @socket.take
    end
  end

  def bytes(*octets)
    octets.flatten.pack("C*")
  end

  # A frame with +first+ for its first byte.
  def frame(first, payload, mask: false)
    payload = payload.b
    masked = mask ? 0x80 : 0
    header =
      if payload.bytesize < 126 then [first, masked | payload.bytesize].pack("CC")
      elsif payload.bytesize < 65_536 then [first, masked | 126, payload.bytesize].pack("CCS>")
      else [first, masked | 127, payload.bytesize].pack("CCQ>")
      end
    return header + payload unless mask

    masked_payload = payload.bytes.each_with_index.map { |octet, at| octet ^ KEY[at % 4] }.pack("C*")
    header + KEY.pack("C*") + masked_payload
  end

  # Parses in pieces of +step+ bytes.
  def parse_in_steps(driver, input, step)
    (0...input.bytesize).step(step) { |at| driver.parse(input.byteslice(at, step)) }
  end
end
