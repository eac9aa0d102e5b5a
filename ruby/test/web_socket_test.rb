# frozen_string_literal: true

require_relative "test_helper"
require "wireloom"

class WebSocketTest < Wireloom::TestCase
  include Wireloom::WebSocket

  REQUEST = "GET /chat?room=1 HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" \
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://example.com\r\n" \
            "Sec-WebSocket-Protocol: chat, superchat\r\nX-Twice: a\r\nX-Twice: b\r\n\r\n"

  # The two ends after their handshake.
  def pair(url: "ws://example.com/chat", **options)
    client = Client.new(url, **options)
    server = Server.new(**options.slice(:deflate, :max_message_length, :ping_after, :dead_after))
    server.receive(client.take_output)
    server.accept
    client.receive(server.take_output)
    [client, server]
  end

  def test_the_handshake
    client = Client.new("ws://example.com:8080/chat?a=b", subprotocols: %w[chat x], origin: "http://example.com",
                                                          headers: { "Cookie" => "a=b" })
    assert_equal :connecting, client.state
    assert client.output?
    request = client.take_output
    refute client.output?
    assert request.start_with?("GET /chat?a=b HTTP/1.1\r\nHost: example.com:8080\r\n")
    assert_includes request, "\r\nCookie: a=b\r\n"

    server = Server.new
    events = request.each_char.flat_map { |byte| server.receive(byte) }
    assert_equal 1, events.size
    event = events[0]
    assert_same event, server.request
    assert_equal ["/chat", "a=b", "example.com:8080", "http://example.com", %w[chat x]],
                 [event.path, event.query, event.host, event.origin, event.subprotocols]
    assert_equal "a=b", event.headers["cookie"]
    assert_equal [Open.new("x", false)], server.accept(subprotocol: "x", headers: { "Set-Cookie" => "c=d" })
    response = server.take_output
    assert_includes response, "\r\nSet-Cookie: c=d\r\n"
    assert_equal [Open.new("x", false)], client.receive(response)
    assert_equal [true, true, "x", "x"], [client.open?, server.open?, client.subprotocol, server.subprotocol]
  end

  def test_messages
    client, server = pair
    client.text("Hello")
    client.text("gr\u00FC\u00DFe".encode(Encoding::UTF_16LE))
    client.text("\u20AC".b)
    client.binary("\xFF\x00".b)
    client.send("text")
    client.send("\xFE".b)
    client.text("\u{10348}" * 50_000)
    client.text("")
    wire = client.take_output
    expected = ["Hello", "gr\u00FC\u00DFe", "\u20AC", "\xFF\x00".b, "text", "\xFE".b, "\u{10348}" * 50_000, ""]
    events = (0...wire.bytesize).step(1000).flat_map { |at| server.receive(wire.byteslice(at, 1000)) }
    assert_equal expected, events
    assert_equal expected.map(&:encoding), events.map(&:encoding)
    assert_equal expected.map(&:ascii_only?), events.map(&:ascii_only?)
    server.text("back")
    assert_equal ["back"], client.receive(server.take_output.freeze)
  end

  def test_input_stays_as_it_is
    client, server = pair
    client.text("Hello")
    wire = client.take_output.freeze
    before = wire.dup
    assert_equal ["Hello"], server.receive(wire)
    assert_equal before, wire
  end

  def test_compression
    client, server = pair(deflate: { level: 9, min_length: 0 })
    assert client.compressed?
    client.text("Hello" * 1000)
    wire = client.take_output
    assert_operator wire.bytesize, :<, 100
    assert_equal ["Hello" * 1000], server.receive(wire)
    client, server = pair(deflate: true, max_message_length: 1000)
    client.text("x" * 1001) # within what the client may send
    event, = server.receive(client.take_output)
    assert_equal 1009, event.code
  end

  MEGABYTES = Array.new(5) { |at| at.chr.b * (1 << 20) }.freeze

  # The events of calls of `receive` until nothing waits, and of the first by `events`.
  def receive_all(connection, events)
    calls = [events]
    calls << connection.receive("") while connection.input?
    # Each message is longer than all of the input: one call goes on until they are 1 MiB longer.
    calls.each { |call| assert_operator call.grep(String).sum(&:bytesize), :<=, 2 << 20 }
    calls.flatten
  end

  # A byte may become a thousand.
  def test_what_one_call_inflates_is_bounded
    client, server = pair(deflate: true)
    MEGABYTES.each { |message| client.send(message) }
    client.close(1000, "done")
    chunk = client.take_output
    events = server.receive(chunk)
    assert server.input?
    server.send("meanwhile")
    assert_equal [*MEGABYTES, Close.new(1000, "done")], receive_all(server, events)
    assert_equal ["meanwhile", Close.new(1000, "done")], client.receive(server.take_output)
    assert_predicate server, :closed?
    # Uncompressed messages are returned at once.
    client, server = pair
    MEGABYTES.each { |message| client.send(message) }
    assert_equal MEGABYTES, server.receive(client.take_output)
    refute server.input?
  end

  def test_what_arrives_behind_input_that_waits
    client, server = pair(deflate: true)
    MEGABYTES.each { |message| client.send(message) }
    events = server.receive(client.take_output)
    client.send("behind")
    events += server.receive(client.take_output)
    server.eof
    assert server.open?
    events += server.receive("") while server.input?
    assert_equal [*MEGABYTES, "behind"], events
    assert_equal [:closed, 1006], [server.state, server.close_code]
  end

  def test_what_comes_early_inflates_as_much_as_the_rest
    client, server = Client.new("ws://example.com", deflate: true), Server.new(deflate: true)
    request = client.take_output
    # Another server's answer is the same.
    [server, twin = Server.new(deflate: true)].each { |each| each.receive(request) }
    twin.accept
    client.receive(twin.take_output)
    MEGABYTES.each { |message| client.send(message) }
    server.receive(client.take_output)
    assert_equal [Open.new(nil, true), *MEGABYTES], receive_all(server, server.accept)
  end

  def test_pings
    client, server = pair
    client.ping("p")
    assert_equal [Ping.new("p")], server.receive(client.take_output)
    pong, = client.receive(server.take_output)
    assert_equal "p", pong.data
    assert_operator pong.round_trip, :>=, 0
    assert_raises(Wireloom::WebSocket::Error) { client.ping("x" * 126) }
  end

  def test_closing
    client, server = pair
    client.close(4000, "done")
    assert_equal [:closing, :open], [client.state, client.transport]
    assert_raises(Wireloom::WebSocket::Error) { client.text("late") }
    assert_equal [Close.new(4000, "done")], server.receive(client.take_output)
    assert_equal :open, server.transport
    assert_equal [Close.new(4000, "done")], client.receive(server.take_output)
    assert_equal [:closed, :close, 4000, true], [server.state, server.transport, server.close_code, server.clean?]
    client.eof
    assert_equal [:closed, 4000, true], [client.state, client.close_code, client.clean?]
    assert_empty client.receive("garbage")
  end

  # RFC 6455 section 7.1.1.
  def test_bytes_behind_a_close_frame
    client, server = pair
    client.close(1000)
    bytes = client.take_output
    [[bytes, "late"], ["#{bytes}late"]].each do |chunks|
      _, server = pair
      chunks.each { |chunk| server.receive(chunk) }
      server.take_output
      assert_equal [:closing, :shut_down_write, 1000, true], [server.state, server.transport, server.close_code, server.clean?]
      server.eof
      assert_equal [:closed, :close, 1000, true], [server.state, server.transport, server.close_code, server.clean?]
    end
  end

  def test_an_end_without_a_close
    client, = pair
    client.eof
    assert_equal [:closed, 1006, false], [client.state, client.close_code, client.clean?]
    waiting = Client.new("ws://example.com")
    waiting.eof
    assert waiting.closed?
  end

  def test_broken_rules
    { "\x83\x00" => [1002, "reserved opcode 3"], "\x81\x80\x00\x00\x00\x00" => [1002, "masked frame from a server"],
      "\x81\x01\xFF" => [1007, "text is not UTF-8"] }.each do |bytes, (code, message)|
      client, = pair
      assert_equal [Failure.new(code, message)], client.receive(bytes.b)
      assert_equal code, client.close_code
      assert client.output?
      refute client.open?
      assert_empty client.receive("\x81\x00".b)
    end
  end

  def test_events_before_a_broken_rule_count
    client, = pair
    assert_equal ["a", Failure.new(1002, "reserved opcode 3")], client.receive("\x81\x01a\x83\x00".b)
  end

  def test_limits
    client, server = pair(max_message_length: 10)
    client.text("x" * 10)
    assert_equal ["x" * 10], server.receive(client.take_output)
    client.text("x" * 11)
    assert_equal 1009, server.receive(client.take_output)[0].code
    client = Client.new("ws://example.com", max_queued_length: 100)
    server = Server.new
    server.receive(client.take_output)
    server.accept
    client.receive(server.take_output)
    client.text("x" * 50)
    assert_raises(Wireloom::WebSocket::Error) { client.text("x" * 100) }
  end

  def test_refusals
    server = Server.new
    server.receive(REQUEST)
    assert_equal "a, b", server.request.headers["x-twice"]
    server.reject(401, headers: { "WWW-Authenticate" => "Basic" }, body: "who?")
    response = server.take_output
    assert response.start_with?("HTTP/1.1 401 ")
    assert response.end_with?("\r\n\r\nwho?")
    assert server.closed?
    client = Client.new("ws://example.com")
    assert_equal [[401, "Basic"]], client.receive(response).map { |event| [event.status, event.headers["www-authenticate"]] }
    assert client.closed?
  end

  def test_what_is_no_handshake
    server = Server.new
    event, = server.receive("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert_instance_of Failure, event
    assert server.take_output.start_with?("HTTP/1.1 4")
    assert_equal :close, server.transport
    client = Client.new("ws://example.com")
    assert_instance_of Failure, client.receive("nonsense\r\n\r\n")[0]
    assert client.closed?
  end

  def test_misuse
    assert_raises(Wireloom::WebSocket::Error) { Client.new("http://example.com") }
    assert_raises(Wireloom::WebSocket::Error) { Client.new("ws://example.com", subprotocols: ["a b"]) }
    assert_raises(ArgumentError) { Client.new("ws://example.com", wat: 1) }
    assert_raises(ArgumentError) { Client.new("ws://example.com", deflate: { level: 10 }) }
    assert_raises(Wireloom::WebSocket::Error) { Server.new.accept }
    assert_raises(Wireloom::WebSocket::Error) { Server.new.text("early") }
    client, = pair
    assert_raises(Wireloom::WebSocket::Error) { client.text("\xFF") }
    assert_raises(Wireloom::WebSocket::Error) { client.close(1005) }
    assert_raises(TypeError) { client.receive(nil) }
    assert_raises(Wireloom::WebSocket::Error) { Class.new(Client) { def initialize; end }.new.receive("x") }
  end

  # Whether it comes with the request or behind it.
  def test_what_comes_early_is_limited
    [->(server, early) { server.receive(REQUEST + early) },
     ->(server, early) { server.receive(REQUEST) + server.receive(early) }].each do |receive|
      server = Server.new
      assert_equal [Request], receive.(server, "x" * (64 << 10)).map(&:class)
      assert_equal [1008], server.receive("x").map(&:code)
      assert_equal [1008], receive.(Server.new, "x" * (64 << 10) + "x").drop(1).map(&:code)
    end
  end

  def test_what_comes_early_is_kept
    server = Server.new
    client = Client.new("ws://example.com")
    assert_equal 1, server.receive(client.take_output).size
    assert_empty server.receive("\x81\x85\0\0\0\0ear".b)
    assert_empty server.receive("ly".b)
    assert_equal [Open.new(nil, false), "early"], server.accept
    server = Server.new
    server.receive(REQUEST)
    assert_equal 1008, server.receive("x" * 70_000)[0].code
  end

  def test_rack
    env = { "REQUEST_METHOD" => "GET", "SCRIPT_NAME" => "", "PATH_INFO" => "/chat", "QUERY_STRING" => "a=b",
            "HTTP_HOST" => "example.com", "HTTP_CONNECTION" => "Upgrade", "HTTP_UPGRADE" => "websocket",
            "HTTP_SEC_WEBSOCKET_VERSION" => "13", "HTTP_SEC_WEBSOCKET_KEY" => "dGhlIHNhbXBsZSBub25jZQ==" }
    server = Server.rack(env)
    assert_equal ["/chat", "a=b"], [server.request.path, server.request.query]
    server.accept
    assert_includes server.take_output, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    error = assert_raises(Wireloom::WebSocket::Error) { Server.rack(env.merge("HTTP_UPGRADE" => "h2c")) }
    refute_empty error.message
  end

  # A server whose request waits for an answer.
  def requested
    server = Server.new
    server.receive(Client.new("ws://x/").take_output)
    server
  end

  # Rack servers hand over bytes in ASCII-8BIT.
  def test_bytes_in_headers_of_rack
    env = { "REQUEST_METHOD" => "GET", "PATH_INFO" => "/", "HTTP_HOST" => "x", "HTTP_CONNECTION" => "upgrade", "HTTP_UPGRADE" => "websocket",
            "HTTP_SEC_WEBSOCKET_VERSION" => "13", "HTTP_SEC_WEBSOCKET_KEY" => "dGhlIHNhbXBsZSBub25jZQ==" }
    ["name=caf\u00e9".b, "caf\xE9".b, "caf\xE9", "caf\u00e9"].each do |cookie|
      server = Server.rack(env.merge("HTTP_COOKIE" => cookie))
      server.accept
      assert_includes server.take_output, "101 Switching"
    end
    assert_raises(Wireloom::WebSocket::Error) { Server.rack(env.merge("PATH_INFO" => "/caf\xE9".b)) }
    assert_raises(Wireloom::WebSocket::Error) { Server.rack(env.merge("REQUEST_METHOD" => "\xE9".b)) }
    assert_raises(Wireloom::WebSocket::Error) { Server.rack(env.merge("SCRIPT_NAME" => "/caf\u00e9", "PATH_INFO" => "/\xE9".b)) }
    assert_raises(Wireloom::WebSocket::Error) { Server.rack(env.merge("PATH_INFO" => "/\u00e9", "QUERY_STRING" => "\xE9".b)) }
  end

  def test_text_that_goes_out_in_any_encoding
    error = Wireloom::WebSocket::Error
    client, = pair
    assert_raises(error) { client.close(1000, "caf\xE9".b) }
    client.close(1000, "caf\u00e9".b)
    frame = client.take_output.b
    key = frame.byteslice(2, 4).bytes.cycle
    assert_equal [1000].pack("n") + "caf\u00e9".b, frame.byteslice(6..).bytes.map { |byte| byte ^ key.next }.pack("C*")
    # Fields are printable ASCII: what is not is refused, not an EncodingError.
    ["caf\u00e9".b, "caf\xE9".b].each do |value|
      outcome = begin
        Client.new("ws://x/", headers: { "Cookie" => value }).take_output
      rescue error
        :refused
      end
      assert(outcome == :refused || outcome.include?(value))
    end
    assert_raises(error) { Client.new("ws://x/", headers: { "Cookie" => "caf\xE9" }) }
    # ENV and files are US-ASCII in some locales, whatever the bytes are.
    [["caf\xE9", "US-ASCII"], ["\xD8\x00", "UTF-16BE"], ["x", "UTF-7"]].each do |value, encoding|
      assert_raises(error) { Client.new("ws://x/", headers: { "Cookie" => value.dup.force_encoding(encoding) }) }
    end
    assert_raises(error) { Client.new("ws://x/caf\xE9".b) }
    assert_raises(error) { Client.new("ws://x/", origin: "caf\xE9".b) }
    assert_raises(error) { Client.new("ws://x/", subprotocols: ["caf\xE9".b]) }
    assert_raises(error) { requested.accept(subprotocol: "caf\xE9".b) }
  end

  def test_a_body_of_any_bytes
    server = requested
    server.reject(403, body: "caf\u00e9".b)
    assert_operator server.take_output, :end_with?, "\r\n\r\ncaf\u00e9".b
    # The answer says that it is UTF-8.
    %w[ISO-8859-1 UTF-16LE].each do |encoding|
      server = requested
      server.reject(403, body: "caf\u00e9".encode(encoding))
      assert_operator server.take_output, :end_with?, "\r\nContent-Length: 5\r\n\r\ncaf\u00e9".b
    end
  end

  def test_timeouts
    client, = pair(ping_after: 0.001, dead_after: 60)
    assert_operator client.timeout, :<=, 0.001
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 5
    client.tick until client.output? || Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
    assert_equal 0x89, client.take_output.getbyte(0)
    assert_nil pair[0].timeout
  end

  # A Pong, or the Close of a closing handshake.
  def test_what_has_arrived_is_not_late
    { { ping_after: 0.001, dead_after: 0.002 } => ->(*) {},
      { close_timeout: 0.001 } => ->(ends) { ends.first.close(1000, "done") } }.each do |options, begin_end|
      client, server = pair(deflate: true, **options)
      MEGABYTES.each { |message| server.send(message) }
      begin_end.call([client, server])
      server.receive(client.take_output)
      events = client.receive(server.take_output)
      assert client.input?
      3.times do
        sleep 0.01
        client.tick
      end
      refute_predicate client, :closed?
      events += client.receive("") while client.input?
      assert_equal MEGABYTES, events.grep(String)
    end
    # Only then it is silent.
    client, = pair(ping_after: 0.001, dead_after: 0.002)
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 20
    client.tick until client.closed? || Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
    assert_predicate client, :closed?
  end

  def test_in_ractors
    needs_sound_ractors
    received = Array.new(2) do |at|
      Ractor.new(at) do |number|
        client = Client.new("ws://example.com")
        server = Server.new
        server.receive(client.take_output)
        server.accept
        client.receive(server.take_output)
        1000.times { |count| client.text("#{number} #{count}") }
        server.receive(client.take_output).size
      end
    end.map { |ractor| ractor.respond_to?(:value) ? ractor.value : ractor.take }
    assert_equal [1000, 1000], received
  end

  def test_in_threads
    received = Array.new(4) do
      Thread.new do
        client, server = pair
        Array.new(200) { |count| client.text("x" * count) && 0 || server.receive(client.take_output)[0].size }
      end
    end.map(&:value)
    assert_equal [(0...200).to_a] * 4, received
  end

  # As a fiber scheduler has them: in turns, on one thread.
  def test_in_fibers
    fibers = Array.new(3) do |at|
      Fiber.new do
        client, server = pair
        Array.new(50) do |count|
          client.text("#{at} #{count}")
          Fiber.yield
          server.receive(client.take_output)[0]
        end
      end
    end
    results = nil
    51.times { results = fibers.map(&:resume) }
    assert_equal(Array.new(3) { |at| Array.new(50) { |count| "#{at} #{count}" } }, results)
  end

  def test_what_is_converted_may_use_the_connection
    server = Server.new
    server.receive(REQUEST)
    headers = Object.new
    headers.define_singleton_method(:to_ary) { server.take_output && [%w[Retry-After 1]] }
    server.reject(503, headers: headers)
    assert_includes server.take_output, "\r\nRetry-After: 1\r\n"
  end

  # The loops of the guide.
  def test_over_sockets
    require "socket"
    listener = TCPServer.new("127.0.0.1", 0)
    serving = Thread.new do
      drive(listener.accept, server = Server.new(deflate: true)) do |event|
        case event
        when Request then server.accept
        when String then server.send(event)
        end
      end
    end
    received = []
    client = Client.new("ws://127.0.0.1:#{listener.local_address.ip_port}/", deflate: true)
    drive(TCPSocket.new("127.0.0.1", listener.local_address.ip_port), client) do |event|
      case event
      when Open then ["Hello", "x" * 300_000, "\xFF".b].each { |message| client.send(message) }
      when String then (received << event).size == 3 && client.close
      when Failure then flunk event.message
      end
    end
    assert_equal ["Hello", "x" * 300_000, "\xFF".b], received
    assert serving.value.clean?
    assert client.clean?
  ensure
    listener.close
  end

  def drive(socket, connection, &handle)
    socket.write(connection.take_output)
    until connection.closed?
      begin
        connection.receive(connection.input? ? "" : socket.readpartial(64 << 10)).each(&handle)
      rescue EOFError
        connection.eof
      end
      socket.write(connection.take_output) if connection.output?
    end
    socket.close
    connection
  end

  def test_its_size_is_told
    require "objspace"
    client, = pair
    before = ObjectSpace.memsize_of(client)
    client.text("x" * 100_000)
    assert_operator ObjectSpace.memsize_of(client), :>=, before + 100_000
  end

  def test_a_message_that_is_not_whole_counts
    require "objspace"
    client, server = pair
    before = ObjectSpace.memsize_of(server)
    client.text("x" * 100_000)
    server.receive(client.take_output.byteslice(0, 90_000))
    assert_operator ObjectSpace.memsize_of(server), :>=, before + 80_000
  end
end
