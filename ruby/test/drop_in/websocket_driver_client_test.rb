# frozen_string_literal: true

require_relative "websocket_driver_helper"

class WebSocketDriverClientTest < Wireloom::TestCase
  include WebSocketDriverHelper

  # RFC 6455 §1.3 has this key and its answer.
  SAMPLE = "dGhlIHNhbXBsZSBub25jZQ=="
  ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
  RESPONSE = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" \
             "Sec-WebSocket-Accept: #{ACCEPT}\r\n\r\n"

  def setup
    singleton = Driver::Client.singleton_class
    singleton.alias_method(:generate_key_as_it_is, :generate_key)
    silently { singleton.define_method(:generate_key) { SAMPLE } }
  end

  def teardown
    singleton = Driver::Client.singleton_class
    silently { singleton.alias_method(:generate_key, :generate_key_as_it_is) }
    singleton.remove_method(:generate_key_as_it_is)
  end

  def silently
    verbose, $VERBOSE = $VERBOSE, nil
    yield
  ensure
    $VERBOSE = verbose
  end

  def client(url: "ws://www.example.com:8080/socket", **options)
    @socket = ClientSocket.new(url: url)
    watch(Driver.client(@socket, options))
  end

  def open_client(**options)
    client(**options).tap do |driver|
      driver.start
      driver.parse(RESPONSE)
      @socket.take
    end
  end

  def test_the_request
    driver = client(protocols: %w[foo bar])
    assert_nil driver.state
    assert_equal(-1, driver.ready_state)
    driver.set_header("User-Agent", "Chrome")
    driver.set_header("Host", "ignored, for it is there")
    assert_equal true, driver.start
    assert_equal "GET /socket HTTP/1.1\r\nHost: www.example.com:8080\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" \
                 "Sec-WebSocket-Key: #{SAMPLE}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: foo, bar\r\n" \
                 "User-Agent: Chrome\r\n\r\n", @socket.take
    assert_equal :connecting, driver.state
    assert_equal false, driver.start
    assert_equal "hybi-13", driver.version
  end

  def test_urls
    { "ws://www.example.com:81" => "GET / ", "wss://www.example.com:81/a?b=c" => "GET /a?b=c " }.each do |url, line|
      client(url: url).start
      assert @socket.take.start_with?(line)
    end
    client(url: "ws://user:pass@www.example.com:8080/").start
    assert_includes @socket.take, "\r\nAuthorization: Basic dXNlcjpwYXNz\r\n"
    error = assert_raises(Driver::URIError) { client(url: "http://www.example.com") }
    assert_equal "http://www.example.com is not a valid WebSocket URL", error.message
  end

  def test_default_ports_are_not_named
    gap_of_the_original
    %w[ws://www.example.com/ ws://www.example.com:80/ wss://www.example.com:443/].each do |url|
      client(url: url).start
      assert_includes @socket.take, "\r\nHost: www.example.com\r\n"
    end
  end

  def test_a_valid_response
    [RESPONSE.bytesize, 1, 7].each do |step|
      driver = client
      driver.start
      parse_in_steps(driver, RESPONSE + frame(0x81, "Hi"), step)
      assert_equal :open, driver.state
      assert_equal 101, driver.status
      assert_equal "websocket", driver.headers["Upgrade"]
      assert_equal "websocket", driver.headers["HTTP_UPGRADE"]
      assert_equal({ "upgrade" => "websocket", "connection" => "Upgrade", "sec-websocket-accept" => ACCEPT },
                   driver.headers.to_h)
      assert_equal [[:open, Driver::OpenEvent.new], [:message, "Hi"]], @events
    end
  end

  def test_what_is_sent_is_masked
    driver = open_client
    driver.text("Hello")
    sent = @socket.take
    assert_equal bytes(0x81, 0x85), sent.byteslice(0, 2)
    assert_equal "Hello", WebSocket::Mask.mask(sent.byteslice(6..), sent.byteslice(2, 4))
  end

  def test_keys_are_those_of_a_replaced_source_of_randomness
    driver = open_client
    SecureRandom.define_singleton_method(:random_bytes) { |length| "abcdefgh"[0, length] }
    driver.text("Hello")
    driver.ping("p")
    assert_equal [bytes(0x81, 0x85), "abcd", bytes(0x89, 0x81)],
                 @socket.take.then { |sent| [sent.byteslice(0, 2), sent.byteslice(2, 4), sent.byteslice(11, 2)] }
  ensure
    SecureRandom.singleton_class.remove_method(:random_bytes)
  end

  def test_responses_that_are_refused
    {
      RESPONSE.sub("101", "4") => "Invalid HTTP response",
      RESPONSE.sub("HTTP/1.1 101 Switching Protocols", "nonsense") => "Invalid HTTP response",
      RESPONSE.sub("101", "200") => "Unexpected response code: 200",
      RESPONSE.sub("Upgrade: websocket", "X: y") => "'Upgrade' header is missing",
      RESPONSE.sub("websocket", "wrong") => "'Upgrade' header value is not 'WebSocket'",
      RESPONSE.sub("Connection: Upgrade", "X: y") => "'Connection' header is missing",
      RESPONSE.sub("Connection: Upgrade", "Connection: close") => "'Connection' header value is not 'Upgrade'",
      RESPONSE.sub("s3p", "xxx") => "Sec-WebSocket-Accept mismatch",
      RESPONSE.sub("\r\n\r\n", "\r\nSec-WebSocket-Protocol: irc\r\n\r\n") => "Sec-WebSocket-Protocol mismatch"
    }.each do |response, said|
      driver = client(protocols: ["xmpp"])
      driver.start
      driver.parse(response)
      said = "Error during WebSocket handshake: #{said}"
      assert_equal [[:error, Driver::ProtocolError, said], [:close, 1002, said]], @events, response
      assert_equal :closed, driver.state
      assert_nil driver.protocol
      assert_nil driver.parse(frame(0x81, "x"))
    end
  end

  def test_a_subprotocol
    driver = client(protocols: %w[foo xmpp])
    driver.start
    driver.parse(RESPONSE.sub("\r\n\r\n", "\r\nSec-WebSocket-Protocol: xmpp\r\n\r\n"))
    assert_equal "xmpp", driver.protocol
    assert_equal :open, driver.state
  end

  def test_a_server_does_not_mask
    gap_of_the_original
    open_client.parse(frame(0x81, "x", mask: true))
    assert_equal [1002, "Received masked frame from a server"], close_event
  end

  def test_headers_have_bounds
    driver = client
    driver.start
    driver.parse("HTTP/1.1 101 OK\r\nX: #{"y" * 32_768}")
    assert_equal :closed, driver.state
    driver = client
    driver.start
    driver.parse(RESPONSE.sub("\r\n\r\n", "\r\nX: #{"y" * 32_000}\r\n\r\n")) unless OLD
    assert_equal :open, driver.state unless OLD
    gap_of_the_original
    driver = client
    driver.start
    driver.parse(RESPONSE + frame(0x81, "x" * 40_000))
    assert_equal ["x" * 40_000], messages
    driver = client
    driver.start
    driver.parse("HTTP/1.1 101 OK\r\n")
    100.times { driver.parse("X: #{"y" * 1000}\r\n") }
    assert_equal "Error during WebSocket handshake: Invalid HTTP response", error_message
    assert_equal 2, @events.size
  end

  def test_frames_with_the_handshake_outlive_an_exception_of_a_listener
    gap_of_the_original
    driver = client
    driver.on(:open) { raise ArgumentError, "from a listener" }
    driver.start
    assert_raises(ArgumentError) { driver.parse(RESPONSE + frame(0x81, "first") + frame(0x81, "second")[0, 4]) }
    driver.parse(frame(0x81, "second")[4..])
    assert_equal %w[first second], messages
  end

  def test_a_proxy
    driver = client
    proxy = driver.proxy("http://user:pass@proxy.example.com/")
    seen = []
    proxy.on(:connect) { |event| seen << event }
    proxy.on(:error) { |error| seen << error.message }
    assert_equal true, proxy.set_header("User-Agent", "Chrome")
    assert_equal true, proxy.start
    assert_equal false, proxy.start
    assert_equal "CONNECT www.example.com:8080 HTTP/1.1\r\nHost: www.example.com:8080\r\nConnection: keep-alive\r\n" \
                 "Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic dXNlcjpwYXNz\r\nUser-Agent: Chrome\r\n\r\n",
                 @socket.take
    assert_equal false, proxy.set_header("Late", "x")
    proxy.parse("HTTP/1.1 200 OK\r\n")
    assert_empty seen
    proxy.parse("Via: x\r\n\r\n")
    assert_equal [Driver::ConnectEvent.new], seen
    assert_equal 200, proxy.status
    assert_equal "x", proxy.headers["Via"]
  end

  def test_a_proxy_that_refuses
    proxy = client.proxy("http://proxy.example.com/")
    seen = []
    proxy.on(:error) { |error| seen << error.message }
    proxy.start
    proxy.parse("HTTP/1.1 403 Forbidden\r\n\r\n")
    assert_equal ["Can't establish a connection to the server at ws://www.example.com:8080/socket"], seen
  end
end
