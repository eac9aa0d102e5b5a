# frozen_string_literal: true

require_relative "websocket_driver_helper"

class WebSocketDriverDraftsTest < Wireloom::TestCase
  include WebSocketDriverHelper

  # The example of draft-ietf-hybi-thewebsocketprotocol-00 §1.3.
  BODY = "^n:ds[4U"
  ANSWER = "8jKS'y:G*Co,Wxa-"
  KEYS = {
    "HTTP_SEC_WEBSOCKET_KEY1" => "4 @1  46546xW%0l 1 5",
    "HTTP_SEC_WEBSOCKET_KEY2" => "12998 5 Y3 1  .P00"
  }.freeze

  def draft75
    env = ENVIRONMENT.reject { |name, _| name.start_with?("HTTP_SEC") }
    @socket = Socket.new(env: env, url: "ws://www.example.com/socket")
    watch(Driver::Draft75.new(@socket))
  end

  def draft76(body: BODY, keys: KEYS)
    env = ENVIRONMENT.merge(keys)
    env["rack.input"] = StringIO.new(body) if body
    @socket = Socket.new(env: env, url: "ws://www.example.com/socket")
    watch(Driver::Draft76.new(@socket))
  end

  def both
    [draft75, draft76].each_with_index do |driver, at|
      driver = at.zero? ? draft75 : draft76
      driver.start
      @socket.take
      yield driver
    end
  end

  def test_draft75_starts
    driver = draft75
    assert_equal true, driver.text("early")
    assert_equal true, driver.start
    assert_equal "HTTP/1.1 101 Web Socket Protocol Handshake\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n" \
                 "WebSocket-Origin: http://www.example.com\r\nWebSocket-Location: ws://www.example.com/socket\r\n\r\n",
                 @socket.written[0]
    assert_equal "\x00early\xFF".b, @socket.written[1]
    assert_equal "hixie-75", driver.version
    assert_equal :open, driver.state
  end

  def test_draft76_starts
    driver = draft76
    driver.text("early")
    assert_equal true, driver.start
    assert_equal ["HTTP/1.1 101 WebSocket Protocol Handshake\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n" \
                  "Sec-WebSocket-Origin: http://www.example.com\r\nSec-WebSocket-Location: ws://www.example.com/socket\r\n\r\n",
                  ANSWER, "\x00early\xFF".b], @socket.written
    assert_equal "hixie-76", driver.version
    assert_equal :open, driver.state
  end

  def test_draft76_waits_for_the_body
    [1, 3, 8].each do |step|
      driver = draft76(body: nil)
      assert_equal true, driver.start
      @socket.take
      assert_equal :connecting, driver.state
      parse_in_steps(driver, BODY, step)
      assert_equal ANSWER, @socket.take
      assert_equal :open, driver.state
      driver.parse("\x00Hi\xFF".b)
      assert_equal ["Hi"], messages
    end
  end

  def test_draft76_reads_what_follows_the_body
    driver = draft76(body: "#{BODY}\x00Hi\xFF".b)
    driver.start
    assert_equal ["Hi"], messages
  end

  def test_draft76_refuses_bad_keys
    ["2 L785 8o% s9Sy9@V. 4<1P5", *(["123", "   ", "1 #{"9" * 20}"] unless ORIGINAL)].each do |key|
      driver = draft76(keys: KEYS.merge("HTTP_SEC_WEBSOCKET_KEY1" => key))
      assert_equal false, driver.start
      said = "Client sent invalid Sec-WebSocket-Key headers"
      assert_equal [[:error, Driver::ProtocolError, said], [:close, nil, nil]], @events
      assert_equal :closed, driver.state
      next if ORIGINAL

      assert_equal "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 45\r\n\r\n#{said}", @socket.take
    end
  end

  def test_text
    both do |driver|
      driver.parse("\x00Hello\xFF\x00World\xFF".b)
      driver.parse("fHello\xFF".b)
      driver.parse("\x80\x02He\x00after\xFF".b)
      parse_in_steps(driver, "\x00Apple = \u{f8ff}".b + "\xFF".b, 1)
      driver.parse("\x80\x00\x00\xFF".b)
      assert_equal ["Hello", "World", "Hello", "after", "Apple = \u{f8ff}", ""], messages
      assert(messages.all? { |text| text.encoding == Encoding::UTF_8 })
      assert_equal true, driver.frame("h\u00E9")
      assert_equal "\x00h\u00E9".b + "\xFF".b, @socket.take
      assert_equal [false, false], [driver.ping, driver.binary("x")]
    end
  end

  def test_listeners_that_raise_lose_nothing
    both do |driver|
      heard = []
      driver.on(:message) { |event| heard << event.data and raise "an error" }
      assert_raises(RuntimeError) { driver.parse("\x00Hello\xFF\x00Wo".b) }
      assert_raises(RuntimeError) { driver.parse("rld\xFF".b) }
      assert_equal %w[Hello World], heard
    end
  end

  def test_closing
    both do |driver|
      assert_equal true, driver.close
      assert_equal [nil, nil], close_event
      assert_equal :closed, driver.state
      assert_equal false, driver.close
      assert_equal (driver.version == "hixie-76" ? "\xFF\x00".b : "".b), @socket.take
      assert_nil driver.parse("\x00late\xFF".b)
      assert_empty messages
    end
  end

  def test_draft76_closing_frame
    driver = draft76
    driver.start
    driver.parse("\xFF\x00".b)
    assert_equal :closed, driver.state
    assert close_event
  end

  def test_messages_have_a_bound
    @socket = Socket.new(env: ENVIRONMENT, url: "ws://x/")
    driver = watch(Driver::Draft75.new(@socket, max_length: 5))
    driver.start
    driver.parse("\x0012345\xFF".b)
    driver.parse("\x00123456".b)
    assert_equal ["12345"], messages
    assert_equal :closed, driver.state
  end

  def test_lengths_have_a_bound
    gap_of_the_original
    ["\x80\xFF\xFF\xFF\x7F", "\x80".b + ("\xFF".b * 100_000)].each do |input|
      driver = draft75
      driver.start
      driver.parse(input.b)
      assert_equal :closed, driver.state
    end
    @socket = Socket.new(env: ENVIRONMENT, url: "ws://x/")
    driver = watch(Driver::Draft75.new(@socket, max_length: 200))
    driver.start
    driver.parse("\x80\x81\x48".b + ("x" * 200) + "\x00ok\xFF".b)
    assert_equal ["ok"], messages
    driver.parse("\x80\x81\x49".b)
    assert_equal :closed, driver.state
  end
end
