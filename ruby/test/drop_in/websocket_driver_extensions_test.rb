# frozen_string_literal: true

require_relative "websocket_driver_helper"
require "zlib"

class WebSocketDriverExtensionsTest < Wireloom::TestCase
  include WebSocketDriverHelper

  # permessage-deflate as an object of the extensions framework, with nothing to negotiate.
  class Deflate
    attr_reader :closed

    def name = "permessage-deflate"
    def type = "permessage"
    def rsv1 = true
    def rsv2 = false
    def rsv3 = false
    def create_server_session(_offers) = self
    def create_client_session = self
    def generate_response = {}
    def generate_offer = {}
    def activate(_params) = true

    def process_incoming_message(message)
      return message unless message.rsv1

      @inflate ||= Zlib::Inflate.new(-15)
      message.data = @inflate.inflate(message.data) + @inflate.inflate("\x00\x00\xff\xff".b)
      message
    end

    def process_outgoing_message(message)
      @deflate ||= Zlib::Deflate.new(9, -15)
      message.data = @deflate.deflate(message.data, Zlib::SYNC_FLUSH).delete_suffix("\x00\x00\xff\xff".b)
      message.rsv1 = true
      message
    end

    def close
      @closed = true
    end
  end

  def compress(text)
    (@deflate ||= Zlib::Deflate.new(9, -15)).deflate(text, Zlib::SYNC_FLUSH).delete_suffix("\x00\x00\xff\xff".b)
  end

  def deflated(**options)
    @extension = Deflate.new
    driver = hybi({ "HTTP_SEC_WEBSOCKET_EXTENSIONS" => "permessage-deflate" }, **options)
    assert_equal true, driver.add_extension(@extension)
    driver.start
    assert_includes @socket.take, "\r\nSec-WebSocket-Extensions: permessage-deflate\r\n"
    driver
  end

  def test_messages_go_through_the_extension
    driver = deflated
    driver.parse(frame(0xC1, compress("Hello" * 100), mask: true) + frame(0x81, "plain"))
    compressed = compress("\u20AC" * 10)
    driver.parse(frame(0x41, compressed[0, 3]) + frame(0x80, compressed[3..]))
    assert_equal ["Hello" * 100, "plain", "\u20AC" * 10], messages
    assert(messages.all? { |text| text.encoding == Encoding::UTF_8 })
    driver.text("Hello")
    sent = @socket.take
    assert_equal 0xC1, sent.getbyte(0)
    assert_equal "Hello", Zlib::Inflate.new(-15).inflate(sent.byteslice(2..) + "\x00\x00\xff\xff".b)
    driver.ping("p")
    assert_equal frame(0x89, "p"), @socket.take
    driver.parse(frame(0x88, ""))
    assert @extension.closed
  end

  def test_only_the_first_frame_of_a_message_has_the_bit
    [frame(0x41, "a") + frame(0xC0, "b"), frame(0xC9, ""), frame(0xA1, "")].each do |input|
      driver = deflated
      driver.parse(input)
      assert_equal 1002, close_event[0]
      assert error_message.start_with?("One or more reserved bits are on: ")
    end
  end

  def test_what_the_extension_raises_fails_the_connection
    driver = deflated
    driver.parse(frame(0xC1, "\xFF\xFF\xFF"))
    assert_equal 1010, close_event[0]
    assert error_message.start_with?("permessage-deflate: ")
  end

  def test_inflated_text_is_utf8
    driver = deflated
    driver.parse(frame(0xC1, compress("ab\xFF".b)))
    assert_equal [1007, "Could not decode a text frame as UTF-8"], close_event
  end

  def test_the_bound_holds_for_what_is_inflated
    gap_of_the_original
    driver = deflated(max_length: 1000)
    driver.parse(frame(0xC1, compress("x" * 1000)) + frame(0xC1, compress("x" * 1000)))
    assert_equal ["x" * 1000] * 2, messages
    driver.parse(frame(0xC1, compress("x" * 1001)))
    assert_equal [1009, "WebSocket frame length too large"], close_event
    driver = deflated(max_length: 1000)
    @deflate = nil
    before = ObjectSpace.count_objects_size[:TOTAL] if ObjectSpace.respond_to?(:count_objects_size)
    driver.parse(frame(0xC2, compress("\0" * 500_000)))
    assert_equal 1009, close_event[0]
    assert before.nil? || ObjectSpace.count_objects_size[:TOTAL] < before + 500_000
  end

  def test_an_extension_that_was_not_negotiated_does_nothing
    driver = hybi
    driver.add_extension(Deflate.new)
    driver.start
    refute_includes @socket.take, "Extensions"
    driver.parse(frame(0x81, "plain"))
    assert_equal ["plain"], messages
    driver.parse(frame(0xC1, "x"))
    assert_equal 1002, close_event[0]
  end

  def test_a_client_offers_it
    socket = ClientSocket.new(url: "ws://x/")
    client = watch(Driver.client(socket))
    client.add_extension(Deflate.new)
    server_socket = ClientSocket.new
    server = Driver.server(server_socket)
    server.on(:connect) { server.add_extension(Deflate.new) && server.start }
    server.on(:message) { |event| server.text(event.data) }
    client.start
    server.parse(socket.take)
    client.parse(server_socket.take)
    3.times { client.text("Hello" * 50) }
    server.parse(socket.take)
    sent = server_socket.take
    assert_operator sent.bytesize, :<, 100
    client.parse(sent)
    assert_equal ["Hello" * 50] * 3, messages
  end
end
