# frozen_string_literal: true

require_relative "websocket_driver_helper"

class WebSocketDriverServerTest < Wireloom::TestCase
  include WebSocketDriverHelper

  REQUEST = "GET /chat?room=1 HTTP/1.1\r\nHost: www.example.com:8080\r\nConnection: keep-alive, Upgrade\r\n" \
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" \
            "X-Twice: a\r\nX-Twice: b\r\n\r\n"

  def server(**options)
    @socket = ClientSocket.new
    watch(Driver.server(@socket, options))
  end

  def open_server(step: 1 << 20, **options)
    server(**options).tap do |driver|
      driver.on(:connect) { driver.start }
      parse_in_steps(driver, REQUEST, step)
    end
  end

  def test_reads_the_request
    [1 << 20, 1, 11].each do |step|
      driver = server
      assert_nil driver.env
      assert_nil driver.url
      assert_nil driver.version
      connected = []
      driver.on(:connect) { |event| connected << [event, driver.env["PATH_INFO"], driver.url] }
      parse_in_steps(driver, REQUEST, step)
      assert_equal [[Driver::ConnectEvent.new, "/chat", "ws://www.example.com:8080/chat?room=1"]], connected
      env = driver.env
      assert_equal ["GET", "", "room=1", "www.example.com", "8080", "a, b"],
                   env.values_at("REQUEST_METHOD", "SCRIPT_NAME", "QUERY_STRING", "SERVER_NAME", "SERVER_PORT", "HTTP_X_TWICE")
      assert_equal "", env["rack.input"].read
      assert_equal "hybi-13", driver.version
      assert_equal :connecting, driver.state
    end
  end

  def test_serves
    driver = open_server(protocols: ["x"])
    assert_includes @socket.take, "\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
    driver.parse(frame(0x81, "Hello", mask: true))
    assert_equal [[:open, Driver::OpenEvent.new], [:message, "Hello"]], @events
    assert_equal true, driver.text("Hi")
    assert_equal frame(0x81, "Hi"), @socket.take
    heard = []
    driver.ping("p") { heard << :pong }
    driver.parse(frame(0x8A, "p", mask: true))
    assert_equal [:pong], heard
    driver.parse(frame(0x89, "q", mask: true))
    assert_includes @events, [:ping, "q"] unless OLD
    driver.parse(frame(0x88, "\x03\xE8bye", mask: true))
    assert_equal [1000, "bye"], close_event
    assert_equal false, driver.pong
  end

  def test_clients_have_to_mask
    driver = open_server
    driver.parse(frame(0x81, "Hello"))
    assert_equal [1003, "Received unmasked frame but masking is required"], close_event
  end

  def test_queues_what_is_done_before_the_request
    driver = server
    assert_equal true, driver.set_header("X", "y")
    assert_equal true, driver.text("early")
    driver.on(:connect) { driver.start }
    driver.parse(REQUEST)
    assert_includes @socket.written[0], "\r\nX: y\r\n"
    assert_equal frame(0x81, "early"), @socket.written[1]
  end

  def test_requests_that_are_refused
    ["nonsense\r\n", "GET / HTTP/1.1\r\nbad header\r\n", "GET /#{"x" * 33_000}"].each do |request|
      driver = server
      driver.parse(request)
      assert_equal [[:error, Driver::ProtocolError, "Invalid HTTP request"], [:close, 1002, "Invalid HTTP request"]], @events
      assert_equal :connecting, driver.state
    end
    driver = server
    driver.parse(REQUEST.sub("www.example.com:8080", "not a host:%%")) unless OLD
    assert_equal [1002, "Invalid HTTP request"], close_event unless OLD
    gap_of_the_original
    driver.parse(REQUEST)
    assert_equal 2, @events.size
  end

  # By the square of their number blanks would take hundreds of times as long as letters.
  def test_blanks_cost_no_more_than_other_bytes
    gap_of_the_original
    letters, blanks = %w[a \ ].map do |char|
      begun = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
      value = "b#{char * 300_000}x"
      refute Driver.websocket?(ENVIRONMENT.merge("HTTP_CONNECTION" => value))
      hybi({ "HTTP_SEC_WEBSOCKET_PROTOCOL" => value }, protocols: ["x"]).start
      15.times { server.parse("GET / HTTP/1.1\r\nHost: x\r\nX: y#{char * 32_000}z\r\n\r\n") }
      Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - begun
    end
    assert_operator blanks, :<, 20 * letters + 0.1
  end

  def test_listeners_that_raise_lose_nothing
    driver = open_server
    heard = []
    driver.on(:message) { |event| heard << event.data and raise "an error" }
    assert_raises(RuntimeError) { driver.parse(frame(0x81, "a", mask: true) + frame(0x81, "b", mask: true)) }
    assert_raises(RuntimeError) { driver.parse("") }
    assert_equal %w[a b], heard
  end

  def test_an_emit_that_is_stubbed_is_called
    driver = open_server
    driver.parse(frame(0x81, "before", mask: true))
    seen = []
    driver.define_singleton_method(:emit) { |event, *args| (seen << event.to_sym) && super(event, *args) }
    driver.parse(frame(0x81, "a", mask: true))
    assert_equal [:message], seen
    assert_equal %w[before a], messages
  end

  def test_an_emit_that_a_listener_stubs_is_called
    driver = open_server
    seen = []
    driver.on(:message) do
      next if driver.singleton_methods.include?(:emit)

      driver.define_singleton_method(:emit) { |event, *args| (seen << event.to_sym) && super(event, *args) }
    end
    driver.parse(%w[a b c].map { |data| frame(0x81, data, mask: true) }.join)
    assert_equal %i[message message], seen
    assert_equal %w[a b c], messages
  end

  def test_what_rack_asks_for
    kind = ->(env) { Driver.rack(Socket.new(env: env, url: "ws://x/")).class }
    assert_equal Driver::Hybi, kind.call(ENVIRONMENT)
    assert_equal Driver::Draft75, kind.call({})
    assert_equal Driver::Draft76, kind.call({ "HTTP_SEC_WEBSOCKET_KEY1" => "1 2", "HTTP_SEC_WEBSOCKET_KEY2" => "1 2" })
    gap_of_the_original
    assert_equal Driver::Hybi, kind.call({ "HTTP_SEC_WEBSOCKET_KEY" => "x" })
    assert_equal Driver::Draft76, kind.call({ "HTTP_SEC_WEBSOCKET_KEY2" => "1 2" })
  end

  def test_websocket_requests
    assert Driver.websocket?(ENVIRONMENT)
    assert Driver.websocket?(ENVIRONMENT.merge("HTTP_CONNECTION" => "keep-alive, Upgrade", "HTTP_UPGRADE" => "WebSocket"))
    refute Driver.websocket?(ENVIRONMENT.merge("HTTP_UPGRADE" => "h2c"))
    refute Driver.websocket?({})
  end

  def test_encode
    assert_equal "\x01\xFF".b, Driver.encode([1, 255])
    assert_equal Encoding::BINARY, Driver.encode([1, 255]).encoding
    assert_equal "h\u00E9".b, Driver.encode("h\u00E9".b) unless OLD
    assert_equal "h\u00E9", Driver.encode("h\u00E9".b, Encoding::UTF_8) unless OLD
    assert_equal "h\u00E9", Driver.encode("h\u00E9".encode("UTF-16LE"), Encoding::UTF_8) unless OLD
    gap_of_the_original
    binary = "h\u00E9".b
    assert_equal Encoding::UTF_8, Driver.encode(binary, Encoding::UTF_8).encoding
    assert_equal Encoding::BINARY, binary.encoding
  end

  def test_the_stream_reader
    reader = Driver::StreamReader.new
    reader.put(+"abc")
    reader.put(nil)
    assert_nil reader.read(4)
    assert_equal "ab", reader.read(2)
    reader.put(+"d" * 300)
    assert_equal "c#{"d" * 199}", reader.read(200)
    seen = []
    reader.each_byte { |octet| seen << octet }
    assert_equal [100] * 101, seen
    assert_nil reader.read(1)
  end

  # The two ends together.

  def test_a_client_and_a_server
    client_socket = ClientSocket.new(url: "ws://localhost:8080/")
    client = Driver.client(client_socket)
    driver = server
    driver.on(:connect) { driver.start }
    driver.on(:message) { |event| event.data.is_a?(Array) ? driver.binary(event.data) : driver.frame(event.data) }
    heard = []
    client.on(:message) { |event| heard << event.data }
    client.start
    driver.parse(client_socket.take)
    client.parse(@socket.take)
    ["Hello", "h\u00E9", "x" * 100_000].each { |text| client.text(text) }
    client.binary([1, 2, 255])
    driver.parse(client_socket.take)
    client.parse(@socket.take)
    assert_equal ["Hello", "h\u00E9", "x" * 100_000, OLD ? [1, 2, 255] : "\x01\x02\xFF".b], heard
    client.close("done", 4000)
    driver.parse(client_socket.take)
    assert_equal [4000, "done"], close_event
    client.parse(@socket.take)
    assert_equal :closed, client.state
  end
end
