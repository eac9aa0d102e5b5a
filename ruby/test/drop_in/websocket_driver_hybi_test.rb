# frozen_string_literal: true

require_relative "websocket_driver_helper"

class WebSocketDriverHybiTest < Wireloom::TestCase
  include WebSocketDriverHelper

  # The opening handshake.

  def test_starts_with_the_response
    driver = hybi
    assert_equal :connecting, driver.state
    assert_equal 0, driver.ready_state
    assert_equal true, driver.start
    assert_equal "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" \
                 "Sec-WebSocket-Accept: JdiiuafpBKRqD7eol0y4vJDTsTs=\r\n\r\n", @socket.take
    assert_equal :open, driver.state
    assert_equal "hybi-13", driver.version
    assert_equal [[:open, Driver::OpenEvent.new]], @events
    assert_equal false, driver.start
  end

  def test_selects_a_subprotocol
    [["xmpp"], "xmpp, irc", " irc,  xmpp"].each do |protocols|
      driver = hybi({ "HTTP_SEC_WEBSOCKET_PROTOCOL" => "foo, bar, xmpp" }, protocols: protocols)
      driver.start
      assert_equal "xmpp", driver.protocol
      assert_includes @socket.take, "\r\nSec-WebSocket-Protocol: xmpp\r\n"
    end
    driver = hybi({ "HTTP_SEC_WEBSOCKET_PROTOCOL" => "foo" }, protocols: ["xmpp"])
    driver.start
    assert_nil driver.protocol
    refute_includes @socket.take, "Sec-WebSocket-Protocol"
  end

  def test_sends_headers_of_the_application
    driver = hybi
    assert_equal true, driver.set_header("Authorization", "Bearer WAT")
    driver.start
    assert_equal false, driver.set_header("Late", "x")
    assert_includes @socket.take, "\r\nAuthorization: Bearer WAT\r\n"
  end

  def test_header_values_cannot_begin_another_header
    gap_of_the_original
    driver = hybi
    driver.set_header("X", "1\r\nSet-Cookie: evil")
    driver.start
    refute_includes @socket.take, "\r\nSet-Cookie"
  end

  def test_refuses_malformed_extensions
    driver = hybi({ "HTTP_SEC_WEBSOCKET_EXTENSIONS" => "x-webkit- -frame" })
    assert_equal false, driver.start
    assert_equal :closed, driver.state
    said = "Invalid Sec-WebSocket-Extensions header: x-webkit- -frame"
    assert_equal [[:error, Driver::ProtocolError, said], [:close, 1002, said]], @events
    assert_equal("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: #{said.bytesize}\r\n\r\n#{said}",
                 @socket.take) unless OLD
  end

  def test_refuses_what_is_no_handshake
    skip "not before 0.7.1" if OLD
    {
      { "HTTP_UPGRADE" => "h2c" } => "Not a WebSocket request",
      { "REQUEST_METHOD" => "POST" } => "Not a WebSocket request",
      { "HTTP_SEC_WEBSOCKET_VERSION" => "8" } => "Unsupported WebSocket version: 13",
      { "HTTP_SEC_WEBSOCKET_KEY" => nil } => "Missing handshake request header: Sec-WebSocket-Key"
    }.each do |env, said|
      driver = hybi(env)
      assert_equal false, driver.start
      assert_includes @socket.take, "HTTP/1.1 400 Bad Request\r\n"
      assert_equal [1002, said], close_event
    end
  end

  def test_refuses_unknown_options
    error = assert_raises(Driver::ConfigurationError) { Driver::Hybi.new(Socket.new(env: ENVIRONMENT), wat: 1) }
    assert_equal "Unrecognized option: :wat", error.message
    skip "not before 0.8" if OLD
    [-> { hybi(binary_data_format: :floats) },
     -> { Driver.validate_options({ binary_data_format: :floats }, [:binary_data_format]) }].each do |wrong|
      error = assert_raises(Driver::ConfigurationError, &wrong)
      assert_equal "Invalid :binary_data_format: :floats", error.message
    end
  end

  def test_queues_what_is_sent_before_the_start
    driver = hybi
    assert_equal true, driver.text("Hi")
    assert_equal true, driver.ping("p")
    assert_equal true, driver.pong
    assert_empty @socket.written
    driver.start
    assert_equal bytes(0x81, 2, 72, 105, 0x89, 1, 112, 0x8A, 0), @socket.written.drop(1).join
  end

  def test_closes_before_the_start
    driver = hybi
    assert_equal true, driver.close
    assert_equal [1000, ""], close_event
    assert_equal :closed, driver.state
    assert_empty @socket.written
    assert_equal false, driver.start
  end

  # Received frames.

  def test_text
    driver = open_hybi
    driver.parse(bytes(0x81, 5) + "Hello")
    driver.parse(frame(0x81, "Hello", mask: true))
    driver.parse(bytes(0x81, 0) + bytes(0x81, 0x80, KEY))
    driver.parse(frame(0x81, "Apple = \u{f8ff}"))
    driver.parse(frame(0x81, "Hello" * 40, mask: true))
    driver.parse(frame(0x81, "\u{10348}" * 20_000, mask: true))
    assert_equal ["Hello", "Hello", "", "", "Apple = \u{f8ff}", "Hello" * 40, "\u{10348}" * 20_000], messages
    assert(messages.all? { |text| text.encoding == Encoding::UTF_8 && text.valid_encoding? })
    assert_equal [true, false], [messages[0].ascii_only?, messages[4].ascii_only?]
    refute messages[0].frozen?
  end

  def test_binary
    driver = open_hybi
    driver.parse(frame(0x82, "\xFE\x00\x80", mask: true))
    if OLD
      assert_equal [[0xFE, 0, 0x80]], messages
    else
      assert_equal ["\xFE\x00\x80".b], messages
      assert_equal Encoding::BINARY, messages[0].encoding
    end
  end

  def test_binary_as_arrays
    driver = OLD ? open_hybi : open_hybi(binary_data_format: :array)
    driver.parse(frame(0x82, "\xFE\x00\x80", mask: true) + frame(0x81, "text") + frame(0x02, "\x01") + frame(0x80, "\x02"))
    assert_equal [[0xFE, 0, 0x80], "text", [1, 2]], messages
  end

  def test_the_same_at_every_step
    input = frame(0x81, "Hello", mask: true) + frame(0x01, "gr\xC3") + frame(0x89, "ping") + frame(0x00, "") +
            frame(0x80, "\xBC\xC3\x9Fe", mask: true) + frame(0x8A, "pong") + frame(0x81, "x" * 300) +
            frame(0x81, "\u20AC" * 30_000, mask: true) + frame(0x88, "\x03\xE8bye")
    expected = ["Hello", "gr\u00FC\u00DFe", "x" * 300, "\u20AC" * 30_000]
    [input.bytesize, 1, 2, 3, 5, 7, 64, 1000, 65_536].each do |step|
      driver = open_hybi
      parse_in_steps(driver, input, step)
      assert_equal expected, messages, "step #{step}"
      assert_equal [1000, "bye"], close_event, "step #{step}"
      assert_equal bytes(0x8A, 4) + "ping" + bytes(0x88, 5, 3, 0xE8) + "bye", @socket.take
    end
  end

  def test_takes_frozen_input_and_leaves_it_as_it_is
    gap_of_the_original
    driver = open_hybi
    chunk = frame(0x81, "Hello", mask: true).force_encoding(Encoding::UTF_8).freeze
    before = chunk.dup
    driver.parse(chunk)
    assert_equal ["Hello"], messages
    assert_equal before, chunk
    assert_equal Encoding::UTF_8, chunk.encoding
  end

  def test_nothing_is_nothing
    driver = open_hybi
    assert_nil driver.parse("")
    assert_nil driver.parse(nil)
    driver.parse(frame(0x81, "x"))
    assert_equal ["x"], messages
  end

  # Rules, in the words of the original.

  def assert_fails(input, code, said, **options)
    driver = open_hybi(**options)
    driver.parse(input)
    assert_equal [[:error, Driver::ProtocolError, said], [:close, code, said]], @events.last(2)
    assert_equal frame(0x88, [code].pack("S>") + said.b), @socket.take
    assert_equal :closed, driver.state
    driver.parse(frame(0x81, "more"))
    assert_equal 0, messages.size
  end

  def test_reserved_bits
    {
      0xC1 => "reserved1 = 1, reserved2 = 0, reserved3 = 0",
      0xA1 => "reserved1 = 0, reserved2 = 1, reserved3 = 0",
      0xF9 => "reserved1 = 1, reserved2 = 1, reserved3 = 1"
    }.each { |first, bits| assert_fails(bytes(first), 1002, "One or more reserved bits are on: #{bits}") }
  end

  def test_opcodes
    [3, 7, 11, 15].each { |opcode| assert_fails(bytes(0x80 | opcode), 1002, "Unrecognized frame opcode: #{opcode}") }
  end

  def test_control_frames
    assert_fails(bytes(0x09), 1002, "Received fragmented control frame: opcode = 9")
    assert_fails(bytes(0x89, 126, 0, 126), 1002, "Received control frame having too long payload: 126")
  end

  def test_fragments
    unfinished = "Received new data frame but previous continuous frame is unfinished"
    assert_fails(frame(0x01, "a") + frame(0x81, "b"), 1002, unfinished)
    assert_fails(frame(0x80, "b"), 1002, "Received unexpected continuation frame")
  end

  def test_masking_where_it_is_required
    assert_fails(frame(0x81, "a"), 1003, "Received unmasked frame but masking is required", require_masking: true)
    driver = open_hybi(require_masking: true)
    driver.parse(frame(0x81, "a", mask: true))
    assert_equal ["a"], messages
  end

  def test_lengths
    assert_fails(bytes(0x81, 127, 0, 0, 0, 0, 0x40, 0, 0, 0), 1009, "WebSocket frame length too large")
    assert_fails(frame(0x81, "123456"), 1009, "WebSocket frame length too large", max_length: 5)
    assert_fails(frame(0x01, "123") + frame(0x80, "456"), 1009, "WebSocket frame length too large", max_length: 5)
    assert_fails(bytes(0x81, 6), 1009, "WebSocket frame length too large", max_length: 5)
    driver = open_hybi(max_length: 5)
    driver.parse(frame(0x01, "123") + frame(0x80, "45") + frame(0x81, "12345"))
    assert_equal %w[12345 12345], messages
  end

  def test_lengths_in_their_shortest_form
    gap_of_the_original
    assert_fails(bytes(0x81, 126, 0, 125), 1002, "Received frame length 125 in a form for longer ones")
    assert_fails(bytes(0x81, 127, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF), 1002, "Received frame length 65535 in a form for longer ones")
  end

  def test_text_is_utf8
    said = "Could not decode a text frame as UTF-8"
    assert_fails(frame(0x81, "ab\xFF"), 1007, said)
    assert_fails(frame(0x81, "\xED\xA0\x80", mask: true), 1007, said)
    assert_fails(frame(0x01, "\xE2\x82") + frame(0x80, ""), 1007, said)
  end

  def test_text_is_refused_at_its_first_impossible_byte
    gap_of_the_original
    driver = open_hybi
    driver.parse(frame(0x81, "a" * 100)[0, 50])
    assert_nil close_event
    driver.parse("\xFF".b)
    assert_equal [1007, "Could not decode a text frame as UTF-8"], close_event
  end

  # Closing.

  def test_close_frames
    {
      "" => [1000, ""], "\x03\xE8Hello" => [1000, "Hello"], "\x03\xE9" => [1001, ""], "\x0B\xB8x" => [3000, "x"],
      "\x13\x87" => [4999, ""], "\x03\xEC" => [1002, ""], "\x00" => [1002, ""], "\x13\x88" => [1002, ""],
      **(OLD ? {} : { "\x03\xE8\xFF" => [1002, "\xFF"] })
    }.each do |payload, (code, reason)|
      driver = open_hybi
      driver.parse(frame(0x88, payload.b))
      assert_equal [[:close, code, reason]], @events.drop(1), payload.inspect
      # A reason that is not UTF-8 is reported, and not sent back.
      sent = reason.valid_encoding? || ORIGINAL ? reason : ""
      assert_equal frame(0x88, [code].pack("S>") + sent.b), @socket.take
      assert_equal :closed, driver.state
    end
  end

  def test_close
    driver = open_hybi
    assert_equal true, driver.close("reasons", 1003)
    assert_equal bytes(0x88, 9, 3, 0xEB) + "reasons", @socket.take
    assert_equal :closing, driver.state
    assert_nil close_event
    assert_equal false, driver.close
    assert_equal false, driver.text("late")
    driver.parse(frame(0x81, "still heard") + frame(0x88, "\x03\xEBreasons"))
    assert_equal ["still heard"], messages
    assert_equal [1003, "reasons"], close_event
    assert_empty @socket.take
    assert_equal :closed, driver.state
  end

  # As the original does, but that it hands over what it finds in such frames.
  def test_closing_ends_whatever_comes_before_the_close
    bad = [frame(0xC1, "reserved"), frame(0x83, "opcode"), frame(0x09, "in pieces"), frame(0x80, "unexpected"), frame(0x81, "\xFF"),
           frame(0x01, "\xFFin pieces"), bytes(0x89, 126, 0, 200) + "x" * 200, frame(0x82, "x" * 300), frame(0x81, "x" * 99, mask: true)]
    [1 << 20, 1, 7, 150].each do |step|
      driver = open_hybi(max_length: 250)
      driver.close("done", 3000)
      @socket.take
      parse_in_steps(driver, bad.join + frame(0x81, "heard") + frame(0x88, "\x0B\xB8done"), step)
      assert_equal ["x" * 99, "heard"], messages unless ORIGINAL
      assert_equal [3000, "done"], close_event
      assert_nil error_message
      assert_equal :closed, driver.state
      assert_empty @socket.take
    end
  end

  # Pings.

  def test_pings
    driver = open_hybi
    driver.parse(frame(0x89, "OHAI", mask: true))
    assert_equal bytes(0x8A, 4) + "OHAI", @socket.take
    assert_equal [:ping, "OHAI"], @events.last unless OLD
    heard = []
    assert_equal true, driver.ping("Hi") { heard << :hi }
    assert_equal true, driver.ping
    assert_equal bytes(0x89, 2, 72, 105, 0x89, 0), @socket.take
    driver.parse(frame(0x8A, "wat"))
    assert_empty heard
    2.times { driver.parse(frame(0x8A, "Hi")) }
    assert_equal [:hi], heard
    assert_equal [:pong, "Hi"], @events.last unless OLD
  end

  def test_pings_carry_no_more_than_they_may
    gap_of_the_original
    driver = open_hybi
    assert_equal true, driver.ping("x" * 125)
    assert_equal false, driver.ping("x" * 126)
    @socket.take
    driver.close("\u20AC" * 60, 1001)
    assert_equal frame(0x88, "\x03\xE9".b + ("\u20AC" * 41).b), @socket.take
  end

  # Sent frames.

  def test_frames
    driver = open_hybi
    assert_equal true, driver.frame("Hello")
    assert_equal true, driver.frame([0x48, 0x65])
    driver.text("h\u00E9")
    driver.frame("x" * 200)
    driver.frame("x" * 70_000)
    driver.frame("Hello", :close, 1002)
    driver.frame("", :pong)
    expected = [frame(0x81, "Hello"), frame(0x82, "He"), frame(0x81, "h\u00E9"), frame(0x81, "x" * 200),
                frame(0x81, "x" * 70_000), frame(0x88, "\x03\xEAHello"), frame(0x8A, "")]
    assert_equal expected, @socket.written
  end

  def test_text_and_binary_by_encoding
    gap_of_the_original
    driver = open_hybi
    driver.frame("\xFF".b)
    driver.text("\xC3\xA9".b)
    driver.text("h\u00E9".encode(Encoding::UTF_16LE))
    driver.binary("h\u00E9")
    driver.text("frozen")
    assert_equal [frame(0x82, "\xFF"), frame(0x81, "\u00E9"), frame(0x81, "h\u00E9"), frame(0x82, "h\u00E9"),
                  frame(0x81, "frozen")], @socket.written
  end

  def test_masks_what_it_sends
    driver = open_hybi(masking: true)
    [0, 1, 5, 200, 70_000].each do |length|
      text = Array.new(length) { |at| (65 + (at % 26)).chr }.join
      driver.text(text)
      sent = @socket.take
      header = length < 126 ? 2 : (length < 65_536 ? 4 : 10)
      assert_equal frame(0x81, text).byteslice(0, header).tap { |head| head.setbyte(1, head.getbyte(1) | 0x80) },
                   sent.byteslice(0, header)
      assert_equal text, WebSocket::Mask.mask(sent.byteslice(header + 4..), sent.byteslice(header, 4))
    end
    driver.frame("bye", :close, 1001)
    sent = @socket.take
    assert_equal "\x03\xE9bye".b, WebSocket::Mask.mask(sent.byteslice(6..), sent.byteslice(2, 4))
  end

  def test_mask
    payload = "abcdef".b
    assert_equal payload, WebSocket::Mask.mask(payload, nil)
    assert_equal "\x60\x60\x60\x60\x64\x64".b, WebSocket::Mask.mask(payload, "\x01\x02\x03\x04".b)
    assert_equal "abcdef", payload
  end

  # Listeners.

  def test_a_listener_that_raises_loses_nothing
    driver = open_hybi
    heard = []
    driver.on(:message) { |event| heard << event.data and raise "an error" }
    input = frame(0x81, "Hello") + frame(0x81, "World") + frame(0x81, "again")
    error = assert_raises(RuntimeError) { driver.parse(input[0, 9]) }
    assert_equal "an error", error.message
    assert_raises(RuntimeError) { driver.parse(input[9..]) }
    assert_raises(RuntimeError) { driver.parse("") }
    assert_equal %w[Hello World again], heard
  end

  def test_listeners_have_a_call_of_their_own
    heard = []
    stubbed = proc { heard << :stubbed }
    stubbed.define_singleton_method(:call) { |event| heard << "stub: #{event.data}" }
    subclass = Class.new(Proc) { define_method(:call) { |event| heard << "subclass: #{event.data}" } }
    [[stubbed], [subclass.new { heard << :subclass }], [stubbed, subclass.new { heard << :subclass }]].each do |listeners|
      driver = open_hybi
      listeners.each { |listener| driver.on(:message, listener) }
      driver.parse(frame(0x81, "Hello"))
    end
    assert_equal ["stub: Hello", "subclass: Hello"] * 2, heard
  end

  def test_a_listener_may_jump_out
    driver = open_hybi
    assert_equal("first", catch(:done) do
      driver.on(:message) { |event| throw :done, event.data }
      driver.parse(frame(0x81, "first") + frame(0x81, "second"))
    end)
    assert_equal("second", catch(:done) { driver.parse("") })
  end

  def test_a_listener_may_parse
    driver = open_hybi
    heard = []
    driver.on(:message) do |event|
      heard << event.data
      driver.parse(frame(0x81, "nested")) if event.data == "outer"
    end
    driver.parse(frame(0x81, "outer") + frame(0x81, "after"))
    assert_equal %w[outer after nested], heard
  end

  def test_a_listener_may_close
    driver = open_hybi
    driver.on(:message) { driver.close }
    driver.parse(frame(0x81, "a") + frame(0x81, "b"))
    assert_equal %w[a b], messages
    assert_equal frame(0x88, "\x03\xE8"), @socket.take
  end

  def test_listeners_come_and_go_while_messages_arrive
    driver = open_hybi
    heard = []
    second = ->(event) { heard << [2, event.data] }
    first = driver.on(:message) do |event|
      heard << [1, event.data]
      driver.on(:message, second) if event.data == "a"
      driver.remove_listener(:message, second) if event.data == "b"
      driver.remove_all_listeners("message") if event.data == "c"
    end
    assert_instance_of Proc, first
    driver.parse(%w[a b c d].map { |text| frame(0x81, text) }.join)
    assert_equal [[1, "a"], [1, "b"], [2, "b"], [1, "c"]], heard
  end

  def test_callables_and_lambdas_listen
    driver = open_hybi
    heard = []
    callable = Object.new
    callable.define_singleton_method(:call) { |event| heard << event.data }
    driver.on(:message, callable)
    driver.on("message", &heard.method(:<<))
    driver.parse(frame(0x81, "x"))
    assert_equal ["x", Driver::MessageEvent.new("x")], heard
  end

  # An application may override what the driver calls.

  def test_an_emit_that_is_stubbed_is_called
    driver = open_hybi
    seen = []
    driver.parse(frame(0x81, "before"))
    driver.define_singleton_method(:emit) { |event, *args| seen << [event, *args] && super(event, *args) }
    driver.parse(frame(0x81, "a"))
    assert_equal [[:message, Driver::MessageEvent.new("a")]], seen
    assert_equal %w[before a], messages
  end

  # By the listener of a message, for those behind it in the chunk.
  def test_an_emit_that_a_listener_stubs_is_called
    [0x81, 0x82].product([1, 2]).each do |first, listeners|
      driver = Driver::Hybi.new(Socket.new(env: ENVIRONMENT))
      driver.start
      seen, received = [], []
      listeners.times do
        driver.on(:message) do |event|
          received << event.data
          next if received.size > 1

          driver.define_singleton_method(:emit) { |name, *args| (seen << name.to_sym) && super(name, *args) }
        end
      end
      driver.parse(%w[a b c].map { |data| frame(first, data) }.join)
      assert_equal %i[message message], seen
      assert_equal 3 * listeners, received.size
    end
  end

  def test_an_emit_of_a_subclass_is_called
    subclass = Class.new(Driver::Hybi) do
      attr_reader :seen

      def emit(event, *)
        (@seen ||= []) << event.to_sym
        super
      end
    end
    @socket = Socket.new(env: ENVIRONMENT)
    driver = watch(subclass.new(@socket))
    driver.start
    driver.parse(frame(0x81, "a"))
    assert_equal %i[open message], driver.seen
    assert_equal ["a"], messages
  end

  def test_an_emit_that_a_module_gets_later_is_called
    seen = []
    %i[prepend include].each do |add|
      subclass = Class.new(Driver::Hybi)
      mod, inner = Module.new, Module.new
      subclass.public_send(add, mod)
      @socket = Socket.new(env: ENVIRONMENT)
      driver = watch(subclass.new(@socket))
      driver.start
      driver.parse(frame(0x81, "a"))
      mod.include(inner)
      inner.define_method(:emit) { |event, *args| (seen << event.to_sym) && super(event, *args) }
      driver.parse(frame(0x81, "b"))
      mod.define_method(:emit) { |event, *args| (seen << :mod) && super(event, *args) }
      driver.parse(frame(0x81, "c"))
      assert_equal %w[a b c], messages
    end
    assert_equal %i[message mod message] * 2, seen
  end

  def test_an_emit_that_a_class_gets_later_is_called
    subclass = Class.new(Driver::Hybi)
    @socket = Socket.new(env: ENVIRONMENT)
    driver = watch(subclass.new(@socket))
    driver.start
    driver.parse(frame(0x81, "a"))
    seen = []
    subclass.prepend(Module.new { define_method(:emit) { |event, *args| (seen << event.to_sym) && super(event, *args) } })
    driver.parse(frame(0x81, "b"))
    assert_equal [:message], seen
    assert_equal %w[a b], messages
  end

  def test_a_frame_that_is_overridden_sends_everything
    subclass = Class.new(Driver::Hybi) do
      def frame(buffer, type = nil, code = nil)
        (@sent ||= []) << [buffer, type, code]
        super
      end
      attr_reader :sent
    end
    @socket = Socket.new(env: ENVIRONMENT)
    driver = subclass.new(@socket)
    driver.start
    driver.text("t")
    driver.binary("b".b)
    driver.ping("p")
    driver.parse(frame(0x89, "q"))
    driver.close("r", 1001)
    assert_equal [["t", :text, nil], ["b", :binary, nil], ["p", :ping, nil], ["q", :pong, nil], ["r", :close, 1001]],
                 driver.sent
  end
end
