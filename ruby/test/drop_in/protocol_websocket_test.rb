# frozen_string_literal: true

require_relative "../test_helper"
original_or_drop_in "protocol_websocket", "protocol/websocket"
require "protocol/websocket/connection"
require "protocol/websocket/extensions"
require "protocol/websocket/headers"
require "protocol/websocket/message"
require "socket"
require "stringio"
require "timeout"
require "support/zlibs"

# Both kinds of stream: a StringIO and a socket.
module Streams
  WS = Protocol::WebSocket

  def memory(bytes)
    StringIO.new(bytes.b)
  end

  def socket(bytes)
    ours, theirs = UNIXSocket.pair
    writer = Thread.new do
      Thread.current.report_on_exception = false
      theirs.write(bytes)
      theirs.close_write
    end
    (@sockets ||= []) << ours << theirs
    (@writers ||= []) << writer
    ours
  end

  def each_stream(bytes)
    yield memory(bytes)
    yield socket(bytes)
  end

  def teardown
    @sockets&.each(&:close)
    @writers&.each { |thread| thread.join rescue nil }
  end
end

class FramerTest < Wireloom::TestCase
  include Streams

  KEY = "\x37\xfa\x21\x3d".b

  def header(first, length, mask = nil)
    bit = mask ? 0x80 : 0
    head = if length < 126 then [first, bit | length].pack("CC")
           elsif length < 65_536 then [first, bit | 126, length].pack("CCn")
           else [first, bit | 127, length].pack("CCQ>")
           end
    head + mask.to_s
  end

  # Bytes behind a frame stay in the socket for any other reader.
  def test_bytes_behind_a_frame_stay_in_the_socket
    readers = {
      "read" => ->(io) { io.read(6) }, "readpartial" => ->(io) { io.readpartial(6) }, "read_nonblock" => ->(io) { io.read_nonblock(6) },
      "gets" => ->(io) { io.gets("d", 6) }, "another framer" => ->(io) { WS::Framer.new(io).read_frame.payload },
      "wait_readable" => ->(io) { io.wait_readable(0) && io.read(6) }, "select" => ->(io) { IO.select([io], nil, nil, 0) && io.read(6) }
    }
    readers.each do |name, reader|
      behind = (name == "another framer" ? "\x81\x04behi" : "behind").b
      ours = socket("\x81\x02hi".b + behind)
      @writers.last.join
      assert_equal "hi", WS::Framer.new(ours).read_frame.payload
      assert_equal behind[-4..], reader.call(ours)[-4..], name
    end
  end

  def test_a_framer_can_be_kept_from_reading_ahead
    gap_of_the_original
    ours = socket("\x81\x02hi\x81\x02ho".b)
    @writers.last.join
    framer = WS::Framer.new(ours)
    framer.read_ahead = false
    assert_equal "hi", framer.read_frame.payload
    # It raises when something is in the buffer of the IO.
    assert_equal "\x81\x02ho".b, ours.sysread(4)
  end

  def test_overridden_reads_of_a_socket_are_called
    ours = socket("\x81\x02hi\x81\x02ho".b)
    sizes = []
    ours.define_singleton_method(:read) do |size|
      sizes << size
      super(size)
    end
    assert_equal %w[hi ho], Array.new(2) { WS::Framer.new(ours).read_frame.payload }
    assert_equal [2, 2, 2, 2], sizes
  end

  def test_large_frames_between_small_ones_from_a_socket
    payloads = ["a", "b" * 8190, "c" * 70_000, "", "d" * 300_000, "e"]
    wire = payloads.map { |payload| header(0x82, payload.bytesize) + payload }.join
    framer = WS::Framer.new(socket(wire))
    assert_equal payloads, Array.new(payloads.size) { framer.read_frame.payload }
    assert_equal "Could not read frame header!", assert_raises(EOFError) { framer.read_frame }.message
  end

  def test_reads_every_kind_at_every_length_and_nothing_behind
    kinds = { 0 => WS::ContinuationFrame, 1 => WS::TextFrame, 2 => WS::BinaryFrame, 8 => WS::CloseFrame, 9 => WS::PingFrame, 10 => WS::PongFrame }
    kinds.each do |opcode, kind|
      [0, 1, 125, 126, 65_535, 65_536].each do |length|
        next if opcode >= 8 && length > 125

        [nil, KEY].each do |mask|
          payload = "x" * length
          each_stream(header(0x80 | opcode, length, mask) + payload + "rest") do |stream|
            frame = WS::Framer.new(stream).read_frame
            assert_instance_of kind, frame
            assert_equal [true, 0, opcode, mask || false, payload], frame.to_ary
            assert_equal length, frame.length
            assert_equal "rest", stream.read(4)
          end
        end
      end
    end
  end

  def test_reads_flags_and_fragments
    frame = WS::Framer.new(memory("\x51\x01a")).read_frame
    assert_equal [false, WS::Frame::RSV1 | WS::Frame::RSV3, 1], [frame.finished, frame.flags, frame.opcode]
    assert frame.continued?
    refute frame.finished?
    assert frame.flag?(WS::Frame::RSV1)
    refute frame.flag?(WS::Frame::RSV2)
  end

  def test_says_what_is_missing
    {
      "" => "Could not read frame header!", "\x81" => "Could not read frame header!",
      "\x81\x7e" => "Could not read length!", "\x81\xfe" => "Could not read length and mask!",
      "\x81\x81" => "Could not read mask!", "\x81\xff" => "Could not read length and mask!",
      "\x82\x01" => "Could not read payload!", "\x82\x051234" => "Incorrect payload length: 5 != 4!",
    }.each do |bytes, message|
      each_stream(bytes) do |stream|
        error = assert_raises(EOFError, bytes.inspect) { WS::Framer.new(stream).read_frame }
        assert_equal message, error.message
      end
    end
  end

  def test_says_what_is_wrong
    {
      "\x83\x00" => "Non-control opcode = 3 is reserved!", "\x8b\x00" => "Control opcode = 11 is reserved!",
      "\x88\xff" => "Invalid control frame payload length: 127 > 125!", "\x08\x0f" => "Fragmented control frame!",
    }.each do |bytes, message|
      each_stream(bytes) do |stream|
        error = assert_raises(WS::ProtocolError) { WS::Framer.new(stream).read_frame }
        assert_equal [message, 1002], [error.message, error.code]
      end
    end
    error = assert_raises(WS::ProtocolError) { WS::Framer.new(memory("\x82\x7d" + "x" * 125)).read_frame(124) }
    assert_equal "Invalid payload length: 125 > 124!", error.message
    assert_equal 125, WS::Framer.new(memory("\x82\x7d" + "x" * 125)).read_frame(125).length
    assert_raises(WS::ProtocolError) { WS::Framer.new(memory("\x82\x01x")).read_frame(-1) }
    assert_raises(WS::ProtocolError) { WS::Framer.new(memory("\x82\x01x")).read_frame(-2**70) }
    assert_equal 1, WS::Framer.new(memory("\x82\x01x")).read_frame(2**70).length
    assert_raises(TypeError, ArgumentError) { WS::Framer.new(memory("\x82\x01x")).read_frame("many") }
  end

  def test_a_huge_length_does_not_kill
    each_stream("\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xffx") do |stream|
      assert_raises(EOFError, NoMemoryError, ArgumentError) { WS::Framer.new(stream).read_frame }
    end
  end

  def test_a_closed_stream_raises
    stream = memory("\x81\x01a")
    stream.close_read
    assert_raises(IOError) { WS::Framer.new(stream).read_frame }
  end

  def test_writes_header_and_payload
    writes = []
    stream = Object.new
    stream.define_singleton_method(:write) { |bytes| writes << bytes }
    framer = WS::Framer.new(stream)
    [0, 125, 126, 65_535, 65_536].each do |length|
      writes.clear
      framer.write_frame(WS::BinaryFrame.new(true, "x" * length))
      assert_equal [header(0x82, length), "x" * length], writes
    end
    writes.clear
    framer.write_frame(WS::TextFrame.new(false, mask: KEY, flags: WS::Frame::RSV1).pack("Hello"))
    assert_equal [header(0x41, 5, KEY), "\x7f\x9f\x4d\x51\x58".b], writes.map(&:b)
    error = assert_raises(WS::ProtocolError) { framer.write_frame(WS::Frame.new(true, "12345", mask: "bad")) }
    assert_equal "Invalid mask length!", error.message
  end

  def test_classes_of_ones_own
    mine = Class.new(WS::TextFrame) do
      attr_reader :seen

      def initialize(finished = true, payload = nil, **options)
        super
        @seen = [finished, payload, options]
      end
    end
    each_stream("\x81\x82abcdxy\x82\x00") do |stream|
      framer = WS::Framer.new(stream, { 1 => mine })
      frame = framer.read_frame
      assert_instance_of mine, frame
      assert_equal [true, "xy", { flags: 0, opcode: 1, mask: "abcd" }], frame.seen
      assert_instance_of WS::Frame, framer.read_frame
    end
  end

  def test_any_object_that_reads_is_a_stream
    stream = Object.new
    bytes = "\x81\x05Hello".b
    asked = []
    stream.define_singleton_method(:read) { |length| asked << length; bytes.slice!(0, length) }
    assert_equal "Hello", WS::Framer.new(stream).read_frame.payload
    assert_equal [2, 5], asked
  end

  def test_what_a_stream_raises_comes_out
    stream = Object.new
    stream.define_singleton_method(:read) { |_| throw :out, 7 }
    assert_equal(7, catch(:out) { WS::Framer.new(stream).read_frame })
  end
end

class FrameTest < Wireloom::TestCase
  include Streams

  def test_masks_both_ways
    100.times do |length|
      data = Random.new(length).bytes(length)
      frame = WS::BinaryFrame.new(mask: "wxyz").pack(data)
      assert_equal data.bytes.each_with_index.map { |byte, at| byte ^ "wxyz".getbyte(at % 4) }, frame.payload.bytes
      assert_equal data, frame.unpack
    end
    assert_equal 4, WS::TextFrame.new(mask: true).mask.bytesize
  end

  def test_frozen_payloads_stay_as_they_are
    frame = WS::TextFrame.new(mask: "wxyz").pack("frozen")
    assert_equal "frozen", frame.unpack
    assert_equal "frozen", WS::TextFrame.new(true, "frozen").read_message("frozen".b.freeze).buffer unless ORIGINAL
  end

  def test_fields_can_be_set
    frame = WS::Frame.new
    assert_equal [true, 0, 0, false, nil], frame.to_ary
    assert_nil frame.length
    frame.finished = false
    frame.flags = 5
    frame.opcode = 9
    frame.mask = "abcd"
    frame.payload = "p"
    assert_equal [false, 5, 9, "abcd", "p"], frame.to_ary
    assert frame.control?
    assert_equal frame, WS::Frame.new(false, "p", flags: 5, opcode: 9, mask: "abcd")
    assert_equal(-1, WS::Frame.new(true, "a", opcode: 1) <=> WS::Frame.new(true, "b", opcode: 1))
  end

  def test_payloads_stay_in_their_encoding
    ["h\u00e9", "h\u00e9".b, "h\u00e9".encode("UTF-16LE"), ""].each do |data|
      frame = WS::TextFrame.new(mask: "wxyz").pack(data)
      assert_equal data.encoding, frame.payload.encoding
      assert_equal data, frame.unpack
    end
    refute WS::ContinuationFrame.new.data?
  end

  # No frame may leave with such a mask, and the original masks with it.
  def test_masks_of_other_lengths
    frame = WS::Frame.new(mask: "bad").pack("12345")
    assert_equal "12345", frame.unpack
    assert_equal "1234".bytes.zip("badb".bytes).map { |a, b| a ^ b }, frame.payload.bytes.first(4)
    assert_raises(ArgumentError) { WS::Frame.new(mask: "").pack("1") }
  end

  def test_what_it_looks_like
    frame = WS::TextFrame.new(false, "p", flags: 4, mask: "wxyz")
    assert_match(/\A#<Protocol::WebSocket::TextFrame:0x\h+ @finished=false, @flags=4, @opcode=1, @mask="wxyz", @payload="p">\z/, frame.inspect)
  end

  def test_a_mask_that_was_read_can_be_changed
    frame = WS::Framer.new(memory("\x81\x82abcdxy")).read_frame
    assert_same frame.mask, frame.mask
    frame = WS::Framer.new(memory("\x81\x82abcdxy")).read_frame
    frame.mask = false
    assert_equal [true, 0, 1, false, "xy"], frame.to_ary
  end

  def test_close_frames
    assert_equal [nil, nil], WS::CloseFrame.new.pack.unpack
    assert_equal [1001, "häßlich"], WS::CloseFrame.new.pack(1001, "häßlich").unpack
    assert_equal [1000, ""], WS::CloseFrame.new.reply.unpack
    { "x" => "Invalid close frame length!", [999].pack("n") => "Invalid close code!", [1005].pack("n") => "Invalid close code!",
      [1015].pack("n") => "Invalid close code!", [5000].pack("n") => "Invalid close code!", [1004].pack("n") => "Reserved close code!",
      [2999].pack("n") => "Reserved close code!", [1000].pack("n") + "\xff".b => "Invalid UTF-8 in close reason!" }.each do |payload, message|
      error = assert_raises(WS::ProtocolError) { WS::CloseFrame.new(true, payload).unpack }
      assert_equal message, error.message
    end
  end

  def test_pings_are_answered_with_their_payload
    pong = WS::PingFrame.new(mask: "abcd").pack("Yo").reply
    assert_instance_of WS::PongFrame, pong
    assert_equal ["Yo", false], [pong.payload, pong.mask]
    assert_equal "Yo", WS::PingFrame.new.pack("Yo").reply(mask: true).unpack unless ORIGINAL
  end

  def test_refuses_what_no_header_could_say
    data = +""
    data.define_singleton_method(:bytesize) { 2**64 }
    assert_match(/bigger than allowed/, assert_raises(WS::ProtocolError) { WS::Frame.new.pack(data) }.message)
  end
end

# Subclasses of the connection, as applications have.
class SubclassTest < Wireloom::TestCase
  include Streams

  # It may have names and variables of its own for what the native side does too.
  class Busy < WS::Connection
    def initialize(framer, **options)
      super
      @size = @utf8 = @plain = @message = "mine"
    end

    %i[accept validate measure plain? read_on read_failed begin_message closing_on_error].each do |name|
      define_method(name) { |*| raise "not to be called" }
    end
  end

  def test_its_names_are_its_own
    each_stream("\x81\x01a\x01\x01b\x80\x01c\x82\x00\x83\x00".b) do |stream|
      connection = Busy.new(WS::Framer.new(stream))
      assert_equal ["a", "bc", "".b], Array.new(3) { connection.read.buffer }
      assert_raises(WS::ProtocolError) { connection.read }
      assert_equal %w[mine mine mine], %i[@size @utf8 @plain].map { |name| connection.instance_variable_get(name) }
    end
  end

  def test_in_ractors
    needs_sound_ractors
    ractor = Ractor.new("\x81\x82abcd\x09\x0b\x01\x01b\x80\x01c".b.freeze) do |bytes|
      connection = Protocol::WebSocket::Connection.new(Protocol::WebSocket::Framer.new(StringIO.new(bytes)))
      Array.new(2) { connection.read.buffer }
    end
    assert_equal %w[hi bc], ractor.respond_to?(:value) ? ractor.value : ractor.take
  end

  def test_its_frames_make_its_messages
    note = Class.new(WS::TextFrame) { define_method(:read_message) { |buffer| [:note, buffer] } }
    each_stream("\x81\x01a\x82\x01b".b) do |stream|
      connection = WS::Connection.new(WS::Framer.new(stream, WS::FRAMES.merge(1 => note)))
      assert_equal [:note, "a"], connection.read
      assert_instance_of WS::BinaryMessage, connection.read
    end
  end
end

class ConnectionTest < Wireloom::TestCase
  include Streams

  def setup
    ours, theirs = UNIXSocket.pair
    @sockets = [ours, theirs]
    @peer = WS::Framer.new(theirs)
    @connection = WS::Connection.new(WS::Framer.new(ours))
  end

  def wire(*frames)
    io = StringIO.new
    frames.each { |frame| WS::Framer.new(io).write_frame(frame) }
    io.string.b
  end

  def read_all(stream, connection = WS::Connection.new(WS::Framer.new(stream)))
    messages = []
    while (message = connection.read)
      messages << message
    end
    messages
  end

  def text(payload, finished = true, **options)
    WS::TextFrame.new(finished, **options).pack(payload)
  end

  def test_reads_messages_of_all_sizes
    sizes = [0, 1, 125, 126, 4_096, 70_000]
    frames = sizes.flat_map { |size| [text("a" * size), text("ä" * size, mask: "abcd"), WS::BinaryFrame.new(mask: true).pack("\xff".b * size)] }
    each_stream(wire(*frames, WS::CloseFrame.new.pack(1000, "bye"))) do |stream|
      connection = WS::Connection.new(WS::Framer.new(NoWrites.new(stream)))
      messages = read_all(stream, connection)
      assert connection.closed?
      expected = sizes.flat_map { |size| ["a" * size, "ä" * size, "\xff".b * size] }
      assert_equal expected, messages.map(&:buffer)
      messages.each_slice(3) do |plain, text, binary|
        assert_equal [WS::TextMessage, WS::TextMessage, WS::BinaryMessage], [plain, text, binary].map(&:class)
        assert_equal [Encoding::UTF_8, Encoding::UTF_8, Encoding::BINARY], [plain, text, binary].map(&:encoding)
        assert plain.buffer.ascii_only?
        assert text.buffer.valid_encoding?
        refute plain.buffer.frozen?
      end
    end
  end

  # Reads of a stream, and swallows what is written.
  class NoWrites
    def initialize(stream)
      @stream = stream
    end

    def read(length)
      @stream.read(length)
    end

    def write(_bytes); end

    def flush; end

    def close; end
  end

  def test_control_frames_between_fragments
    @peer.write_frame(text("Hello ", false))
    @peer.write_frame(WS::PingFrame.new.pack("Yo"))
    @peer.write_frame(WS::PongFrame.new.pack("unasked"))
    @peer.write_frame(WS::ContinuationFrame.new(true, mask: "wxyz").pack("wörld!"))
    message = @connection.read
    assert_equal "Hello wörld!", message
    assert_equal Encoding::UTF_8, message.encoding
    @connection.flush
    assert_equal "Yo", @peer.read_frame.payload
  end

  def test_refuses_frames_out_of_order
    [[text("a", false), text("b"), /text, but expecting continuation/],
     [WS::BinaryFrame.new(false, "a"), WS::BinaryFrame.new(true, "b"), /binary, but expecting continuation/],
     [WS::ContinuationFrame.new(true, "a"), nil, /unexpected continuation/]].each do |first, second, message|
      setup
      @peer.write_frame(first)
      @peer.write_frame(second) if second
      error = assert_raises(WS::ProtocolError) { @connection.read }
      assert_match message, error.message
      assert @connection.closed?
      assert_equal [1002, error.message], @peer.read_frame.unpack
    end
  end

  def test_invalid_text
    ["\xce\xba\xf4\x90\x80\x80".b, "\xc3".b, "\xed\xa0\x80".b].each do |payload|
      setup
      @peer.write_frame(WS::TextFrame.new(true, payload))
      error = assert_raises(WS::ProtocolError) { @connection.read }
      assert_equal "invalid UTF-8 in text frame!", error.message
      assert_equal 1007, @peer.read_frame.unpack.first unless ORIGINAL
    end
  end

  def test_invalid_text_fails_in_its_fragment
    gap_of_the_original
    @peer.write_frame(text("gut", false))
    @peer.write_frame(WS::ContinuationFrame.new(false, mask: "abcd").pack("\xf4\x90".b))
    error = assert_raises(WS::ProtocolError) { @connection.read }
    assert_equal 1007, error.code
  end

  def test_text_split_within_characters
    bytes = ("a" + "ß€😀" * 300).b
    pieces = bytes.scan(/.{1,7}/mn)
    frames = pieces.map.with_index do |piece, at|
      kind = at.zero? ? WS::TextFrame : WS::ContinuationFrame
      kind.new(at == pieces.size - 1, mask: at.even? ? "abcd" : false).pack(piece)
    end
    each_stream(wire(*frames)) do |stream|
      assert_equal "a" + "ß€😀" * 300, WS::Connection.new(WS::Framer.new(NoWrites.new(stream))).read
    end
  end

  def test_reserved_bits
    @peer.write_frame(text("a", flags: WS::Frame::RSV1))
    error = assert_raises(WS::ProtocolError) { @connection.read }
    assert_match(/reserved flags set/, error.message)
    setup
    assert @connection.reserve!(WS::Frame::RSV2)
    assert_raises(ArgumentError) { @connection.reserve!(WS::Frame::RSV2) }
    @peer.write_frame(text("a", flags: WS::Frame::RSV2))
    assert_equal "a", @connection.read
  end

  def test_closing
    @peer.write_frame(WS::CloseFrame.new.pack(1001, "away"))
    error = assert_raises(WS::ClosedError) { @connection.read }
    assert_equal ["away", 1001], [error.message, error.code]
    assert_equal [1001, "away"], @peer.read_frame.unpack
    assert_nil @connection.read_frame
    setup
    @connection.close_write
    refute @connection.closed?
    @peer.write_frame(text("still"))
    @peer.write_frame(@peer.read_frame.reply)
    assert_equal "still", @connection.read
    assert_nil @connection.read
    assert @connection.closed?
    setup
    @peer.write_frame(text("drained"))
    @peer.write_frame(WS::CloseFrame.new.tap(&:pack))
    @connection.shutdown
    assert @connection.closed?
  end

  def test_a_stream_that_ends_closes
    @sockets.last.close
    assert_raises(EOFError) { @connection.read }
    assert @connection.closed?
    setup
    @sockets.first.close
    assert_same @connection, @connection.close!
    assert @connection.closed?
    refute @connection.open!.closed?
    @connection.close_write(RuntimeError.new("why"))
    assert @connection.closed?
    assert_raises(WS::ProtocolError) { @connection.send_ping }
    assert_raises(WS::ProtocolError) { @connection.receive_ping(WS::PingFrame.new) }
  end

  def test_writes_what_a_message_is
    ours = WS::Connection.new(WS::Framer.new(@sockets.first), mask: true)
    [["text", WS::TextFrame], ["bytes".b, WS::BinaryFrame], [WS::TextMessage.new("m"), WS::TextFrame],
     [WS::BinaryMessage.new("b"), WS::BinaryFrame], [WS::PingMessage.new("p"), WS::PingFrame]].each do |message, kind|
      ours.write(message)
      frame = @peer.read_frame
      assert_instance_of kind, frame
      assert_equal message.to_str, frame.unpack
      assert_equal 4, frame.mask.bytesize
    end
    assert_equal "Unsupported message type: 7", assert_raises(ArgumentError) { ours.write(7) }.message
  end

  def test_messages_are_coded
    message = WS::TextMessage.generate({ a: [1] })
    assert_equal ['{"a":[1]}', { a: [1] }, { a: [1] }, 9], [message.buffer, message.parse, message.to_h, message.size]
    assert_equal message, '{"a":[1]}'
  end

  def test_what_is_overridden_is_called
    seen = []
    klass = Class.new(WS::Connection) do
      define_method(:receive_text) { |frame| seen << frame.unpack; super(frame) }
    end
    @peer.write_frame(text("one"))
    assert_equal "one", klass.new(WS::Framer.new(@sockets.first)).read
    @peer.write_frame(text("two"))
    @connection.define_singleton_method(:read_frame) { seen << :read_frame; super() }
    assert_equal "two", @connection.read
    framer = WS::Framer.new(@sockets.first)
    connection = WS::Connection.new(framer)
    @peer.write_frame(text("three"))
    assert_equal "three", connection.read
    framer.define_singleton_method(:read_frame) { |*| seen << :framer; super() }
    @peer.write_frame(text("four"))
    assert_equal "four", connection.read
    late = Class.new(WS::Connection)
    connection = late.new(WS::Framer.new(@sockets.first))
    @peer.write_frame(text("five"))
    assert_equal "five", connection.read
    late.prepend(Module.new { define_method(:unpack_frames) { |frames| seen << :unpack; super(frames) } })
    @peer.write_frame(text("six"))
    assert_equal "six", connection.read
    assert_equal ["one", :read_frame, :framer, :unpack], seen
  end

  def test_a_module_of_a_connection_gets_its_method_later
    seen = []
    mod = Module.new
    connection = Class.new(WS::Connection) { include mod }.new(WS::Framer.new(@sockets.first))
    @peer.write_frame(text("one"))
    assert_equal "one", connection.read
    mod.define_method(:receive_text) { |frame| super(frame).tap { seen << frame.unpack } }
    @peer.write_frame(text("two"))
    assert_equal "two", connection.read
    assert_equal ["two"], seen
  end

  # In processes of their own, since nothing takes such a change back.
  def test_modules_in_the_classes_of_frames_and_messages
    skip "no fork" unless Process.respond_to?(:fork)
    calls = { WS::TextFrame => %i[apply unpack read_message initialize], WS::Frame => %i[unpack], WS::TextMessage => %i[initialize] }
    calls.flat_map { |owner, names| [owner].product(names, [false, true]) }.each do |owner, name, is_late|
      seen = in_a_fork do |count|
        read = -> { each_stream("\x81\x03abc") { |stream| WS::Connection.new(WS::Framer.new(stream)).read } }
        mod = Module.new
        fill = -> { mod.define_method(name) { |*arguments, **options| super(*arguments, **options).tap { count.call } } }
        read.call
        fill.call unless is_late
        owner.prepend(mod)
        read.call
        fill.call if is_late
        read.call
      end
      assert_equal is_late ? 2 : 4, seen, "#{owner}##{name}#{" later" if is_late}"
    end
  end

  # How often the block's counter was called.
  def in_a_fork
    reader, writer = IO.pipe
    pid = fork do
      count = 0
      yield -> { count += 1 }
      writer.write(count.to_s)
    ensure
      writer.close
      exit!
    end
    writer.close
    Process.wait(pid)
    reader.read.to_i
  end

  def test_a_subclass_may_take_its_own_options
    klass = Class.new(WS::Connection) do
      attr_reader :protocol

      def initialize(framer, protocol = nil, **options)
        super(framer, **options)
        @protocol = protocol
      end
    end
    connection = klass.new(WS::Framer.new(@sockets.first), "chat", mask: true, anything: 1)
    assert_equal ["chat", true], [connection.protocol, connection.mask]
    @peer.write_frame(text("x"))
    assert_equal "x", connection.read
  end

  def test_a_message_has_a_bound
    gap_of_the_original
    { [text("x" * 11)] => false, [text("x" * 10)] => true, [text("x" * 6, false), WS::ContinuationFrame.new(true, "x" * 5)] => false,
      [text("x" * 6, false), WS::ContinuationFrame.new(true, "x" * 4)] => true }.each do |frames, fits|
      each_stream(wire(*frames)) do |stream|
        connection = WS::Connection.new(WS::Framer.new(NoWrites.new(stream)), maximum_message_size: 10)
        if fits
          assert_equal "x" * 10, connection.read
        else
          assert_equal 1009, assert_raises(WS::ProtocolError) { connection.read }.code
        end
      end
    end
  end

  # The first frames of a message, then the header of one that is a byte too long: refused before anything of it has arrived.
  def test_a_header_shows_that_a_message_is_too_long
    gap_of_the_original
    long = "\x82\x7E\x03\xE9".b
    more = "\x80\x7E\x03\xE8".b
    huge = "\x80\x7F\x40#{"\0" * 7}".b
    begun = wire(text("a", false))
    between = wire(WS::PingFrame.new(true, "p" * 125))
    overridden = Class.new(WS::Framer) { def read_frame(maximum_frame_size = WS::MAXIMUM_ALLOWED_FRAME_SIZE) = super }
    watched = Class.new(WS::Connection) { def receive_text(frame) = super }
    [[long, WS::Connection, WS::Framer], [begun + more, WS::Connection, WS::Framer], [begun + huge, WS::Connection, WS::Framer],
     [begun + between + more, WS::Connection, WS::Framer], [long, watched, WS::Framer], [begun + huge, watched, overridden],
     [long, WS::Connection, overridden]].product([false, true]) do |(bytes, connection, framer), compressed|
      ours, theirs = UNIXSocket.pair
      theirs.write(bytes)
      connection = connection.new(framer.new(ours), maximum_message_size: 1000)
      WS::Extension::Compression.server(connection) if compressed
      error = assert_raises(WS::ProtocolError) { Timeout.timeout(5) { connection.read } }
      assert_equal ["Message is longer than 1000 bytes!", 1009], [error.message, error.code]
    ensure
      [ours, theirs].each(&:close)
    end
  end

  # A message of the greatest length, its frames, and control frames that are longer than what is left of it.
  def test_control_frames_are_no_part_of_a_message
    gap_of_the_original
    ping = WS::PingFrame.new(true, "p" * 125)
    [[text("x" * 10)], [ping, text("x" * 10)], [text("x" * 9, false), ping, WS::ContinuationFrame.new(true, "x")],
     [text("x" * 10, false), ping, WS::ContinuationFrame.new(true, "")]].each do |frames|
      each_stream(wire(*frames)) do |stream|
        connection = WS::Connection.new(WS::Framer.new(NoWrites.new(stream)), maximum_message_size: 10)
        assert_equal "x" * 10, connection.read
      end
      ours, theirs = UNIXSocket.pair
      theirs.write(wire(*frames))
      assert_equal "x" * 10, WS::Connection.new(WS::Framer.new(ours), maximum_message_size: 10).read
    ensure
      [ours, theirs].each { |socket| socket&.close }
    end
  end

  def test_a_message_has_a_bound_of_fragments
    gap_of_the_original
    ours, theirs = UNIXSocket.pair
    writer = Thread.new { theirs.write("\x02\x00".b, "\x00\x00".b * 20_000) rescue nil }
    error = assert_raises(WS::ProtocolError) { WS::Connection.new(WS::Framer.new(ours), maximum_message_size: 1000).read }
    assert_equal ["Message has too many fragments!", 1009], [error.message, error.code]
  ensure
    [ours, theirs].each { |socket| socket&.close }
    writer&.join
  end

  # A peer that broke a message off and says nothing more: on a stream that cannot wait for a limited time, and within a frame.
  def test_refused_text_does_not_wait_for_a_silent_peer
    gap_of_the_original
    wrapped = Struct.new(:io) do
      def read(length) = io.read(length)
      def write(bytes) = io.write(bytes)
      def flush = nil
      def close = io.close
    end
    [["", wrapped], ["\x00".b, :itself.to_proc], ["\x00\x05ab".b, :itself.to_proc]].each do |rest, stream|
      ours, theirs = UNIXSocket.pair
      theirs.write("\x01\x02\xff\xff".b + rest)
      stream = stream == wrapped ? wrapped.new(ours) : ours
      assert_raises(WS::ProtocolError) { Timeout.timeout(5) { WS::Connection.new(WS::Framer.new(stream)).read } }
    ensure
      [ours, theirs].each { |socket| socket&.close }
    end
  end

  # They are for the reader, whichever way the message takes.
  def test_options_of_a_read
    reader = Struct.new(:seen) do
      def unpack_frames(frames, **options)
        seen << options
        frames.map(&:unpack).join
      end
    end
    whole = wire(text("hello"))
    { whole => nil, wire(WS::PingFrame.new(true, "p")) + whole => nil,
      wire(text("hel", false), WS::ContinuationFrame.new(true, "lo")) => nil, wire(text("hello")) => reader.new([]) }.each do |bytes, wrapped|
      ours, theirs = UNIXSocket.pair
      theirs.write(bytes)
      connection = WS::Connection.new(WS::Framer.new(ours))
      connection.reader = wrapped if wrapped
      connection.singleton_class.define_method(:unpack_frames) { |frames, **options| options == { foo: 1 } ? super(frames) : flunk } unless wrapped
      assert_equal "hello", connection.read(foo: 1)
      assert_equal [{ foo: 1 }], wrapped.seen if wrapped
    ensure
      [ours, theirs].each(&:close)
    end
    ours, = pair = UNIXSocket.pair
    assert_raises(ArgumentError) { WS::Connection.new(WS::Framer.new(ours)).read(1) }
  ensure
    pair&.each(&:close)
  end
end

class CompressionTest < Wireloom::TestCase
  include Streams

  def pair(**options)
    offer = nil
    client = WS::Extensions::Client.new([[WS::Extension::Compression, options]])
    client.offer { |header| offer = header.join("; ") }
    answer = nil
    server = WS::Extensions::Server.default
    server.accept([offer]) { |header| answer = header.join("; ") }
    client.accept([answer])
    @sockets = UNIXSocket.pair
    ends = [WS::Connection.new(WS::Framer.new(@sockets[0]), mask: true), WS::Connection.new(WS::Framer.new(@sockets[1]))]
    client.apply(ends[0])
    server.apply(ends[1])
    [offer, answer, *ends]
  end

  def test_agrees
    offer, answer, = pair
    assert_equal ["permessage-deflate; client_max_window_bits", "permessage-deflate; client_max_window_bits=15"], [offer, answer]
    teardown
    offer, answer, client, server = pair(client_max_window_bits: 8, server_max_window_bits: 10, client_no_context_takeover: true)
    assert_equal "permessage-deflate; client_max_window_bits=8; client_no_context_takeover; server_max_window_bits=10", offer
    assert_equal "permessage-deflate; client_max_window_bits=9; client_no_context_takeover; server_max_window_bits=10", answer
    assert_equal [9, 10, false, true], [client.writer.window_bits, client.reader.window_bits, client.writer.context_takeover, server.writer.context_takeover]
    error = assert_raises(ArgumentError) { WS::Extension::Compression.negotiate([%w[what 1]]) }
    assert_equal "Unknown option: what!", error.message
    assert_raises(ArgumentError) { WS::Extension::Compression.offer(client_max_window_bits: 7) }
    assert_equal [["a", [["b", "1"], ["c"]]]], WS::Extensions.parse(["a; b=1; c"]).to_a
  end

  def test_messages_pass
    [{}, { client_no_context_takeover: true, server_no_context_takeover: true }].each do |options|
      *, client, server = pair(**options)
      3.times do |at|
        client.write("häßlich " * 500 + at.to_s)
        assert_equal "häßlich " * 500 + at.to_s, server.read
        server.send_binary("\x00" * 5000, compress: true)
        assert_equal "\x00" * 5000, client.read.buffer
        server.send_text("plain", compress: false)
        assert_equal "plain", client.read
      end
      teardown
    end
  end

  def test_a_message_that_was_not_written_is_not_referred_to
    gap_of_the_original
    *, client, server = pair
    fails = false
    client.framer.define_singleton_method(:write_frame) { |frame| fails ? raise(Timeout::Error) : super(frame) }
    client.send_text("first")
    assert_equal "first", server.read
    %i[send_text send_binary].each do |send|
      fails = true
      assert_raises(Timeout::Error) { client.public_send(send, "lost by #{send}", compress: true) }
      fails = false
      client.public_send(send, "lost by #{send}, and more", compress: true)
      read = server.read
      assert_equal "lost by #{send}, and more", read.respond_to?(:buffer) ? read.buffer : read
    end
  end

  # The original raises Zlib::BufError at an empty one that is not the first.
  def test_empty_messages
    gap_of_the_original
    *, client, server = pair
    ["", "a", "", "", "b"].each do |text|
      assert_equal 4, client.write(text).flags
      assert_equal text, server.read
    end
  end

  def test_fragments_share_one_stream
    *, client, server = pair
    frame = client.writer.pack_text_frame("Hallo " * 100)
    whole = frame.unpack
    first = WS::TextFrame.new(false, whole.byteslice(0, 3), flags: WS::Frame::RSV1)
    client.write_frame(first)
    client.write_frame(WS::ContinuationFrame.new(true, whole.byteslice(3..)))
    assert_equal "Hallo " * 100, server.read
  end

  def test_what_inflates_has_a_bound
    gap_of_the_original
    *, client, server = pair
    server.reader.maximum_size = 1000
    client.write("x" * 1000)
    assert_equal 1000, server.read.size
    client.write("x" * 1001)
    assert_equal 1009, assert_raises(WS::ProtocolError) { server.read }.code
    assert_equal 1009, assert_raises(WS::ClosedError) { client.read }.code
  end

  def test_what_does_not_inflate
    gap_of_the_original
    *, client, server = pair
    client.write_frame(WS::TextFrame.new(true, "\xff\xff\xff".b, flags: WS::Frame::RSV1))
    assert_equal 1007, assert_raises(WS::ProtocolError) { server.read }.code
  end

  def test_windows_that_zlib_does_not_have
    [7, 16].each do |bits|
      writer = WS::Extension::Compression::Deflate.new(WS::Connection.new(WS::Framer.new(memory(""))), window_bits: bits)
      assert_raises(Zlib::StreamError) { writer.pack_text_frame("Hello") }
    end
  end

  def test_a_window_of_256_bytes
    gap_of_the_original
    writer = WS::Extension::Compression::Deflate.new(WS::Connection.new(WS::Framer.new(memory(""))), window_bits: 8)
    inflate = Zlib::Inflate.new(-8)
    ["Hello" * 100, "\u20AC" * 2000, "Hello" * 100].each do |text|
      payload = writer.pack_text_frame(text).unpack
      assert_equal text.b, inflate.inflate(payload + "\x00\x00\xff\xff".b)
    end
  end

  PARAMETERS = [
    {}, { client_no_context_takeover: true }, { server_no_context_takeover: true }, { client_max_window_bits: 9 },
    { client_max_window_bits: 12, server_max_window_bits: 9 }
  ].freeze

  def test_zlib_reads_what_is_written_and_writes_what_is_read
    texts = ["Hello" * 100, "Hello" * 100, "häßlich " * 3000, "a"]
    PARAMETERS.each do |options|
      *, client, server = pair(**options)
      inflate = Zlib::Inflate.new(-client.writer.window_bits)
      read = texts.map do |text|
        payload = client.writer.pack_text_frame(text).unpack
        inflate = Zlib::Inflate.new(-client.writer.window_bits) unless client.writer.context_takeover
        (inflate.inflate(payload) + inflate.inflate("\x00\x00\xff\xff".b)).force_encoding(Encoding::UTF_8)
      end
      assert_equal texts, read
      deflate = Zlib::Deflate.new(9, -server.reader.window_bits)
      read = texts.map do |text|
        deflate = Zlib::Deflate.new(9, -server.reader.window_bits) unless server.reader.context_takeover
        payload = deflate.deflate(text, Zlib::SYNC_FLUSH).delete_suffix("\x00\x00\xff\xff".b)
        client.write_frame(WS::TextFrame.new(flags: WS::Frame::RSV1, mask: true).pack(payload))
        server.read.buffer
      end
      assert_equal texts, read
      teardown
    end
  end

  def test_the_core_compresses_unless_it_is_configured
    *, client, server = pair
    made = Zlibs.during do
      3.times { client.write("Hello" * 50) }
      3.times { assert_equal "Hello" * 50, server.read }
    end
    assert_equal ORIGINAL ? 2 : 0, made
    [{ level: 1 }, { memory_level: 9 }, { strategy: Zlib::HUFFMAN_ONLY }].each do |options|
      writer = WS::Extension::Compression::Deflate.client(client, **options)
      frame = nil
      assert_equal 1, Zlibs.during { frame = writer.pack_text_frame("Hello" * 50) }
      assert_equal "Hello" * 50, Zlib::Inflate.new(-15).inflate(frame.unpack + "\x00\x00\xff\xff".b)
    end
  end

  def test_only_first_frames_are_compressed
    gap_of_the_original
    *, client, server = pair
    client.write_frame(WS::PingFrame.new(flags: WS::Frame::RSV1).pack("x"))
    assert_equal 1002, assert_raises(WS::ProtocolError) { server.read }.code
  end
end

class TakenPlaceTest < Wireloom::TestCase
  def test_the_headers
    assert_equal "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", Protocol::WebSocket::Headers::Nounce.accept_digest("dGhlIHNhbXBsZSBub25jZQ==")
    assert_equal 24, Protocol::WebSocket::Headers::Nounce.generate_key.size
    assert_equal "sec-websocket-key", Protocol::WebSocket::Headers::SEC_WEBSOCKET_KEY
  end

  def test_requires_of_the_original_find_it_loaded
    %w[protocol/websocket protocol/websocket/framer protocol/websocket/error protocol/websocket/coder/json
       protocol/websocket/extension/compression/inflate].each { |feature| refute require(feature) } unless ORIGINAL
    assert_match(/\A0\.\d+\.\d+\z/, Protocol::WebSocket::VERSION)
    assert_operator Protocol::WebSocket::Error, :<, Protocol::HTTP::Error
  end

  def test_a_peer_that_still_writes_an_invalid_message_can_do_so
    30.times do
      ours, theirs = UNIXSocket.pair
      writer = Thread.new do
        theirs.write("\x01\x04\xFF\xFF\xFF\xFF".b)
        64.times { theirs.write("\x00\x7E\x40\x00".b + ("x" * 16_384)) }
        theirs.write("\x80\x01x".b)
        # This end shuts down its side after the Close frame. Otherwise the connection would wait for it.
        theirs.read(2).tap { theirs.close_write }
      end
      connection = Protocol::WebSocket::Connection.new(Protocol::WebSocket::Framer.new(ours))
      assert_raises(Protocol::WebSocket::ProtocolError) { connection.read }
      assert_equal 0x88, writer.value.getbyte(0)
    ensure
      theirs&.close
    end
  end
end
