# frozen_string_literal: true

require_relative "../test_helper"
require "stringio"

if ORIGINAL
  require_needed("protocol/http2/framer", "protocol/http2/stream", "protocol/http2/client", "protocol/http2/server")
else
  require "wireloom/drop_in/protocol_http2"
end

# HPACK, with the original or its replacement.
class ProtocolHPACKTest < Wireloom::TestCase
  Compressor, Decompressor, Context = %i[Compressor Decompressor Context].map { |name| Protocol::HPACK.const_get(name) }
  FIELDS = [[":method", "GET"], ["X-Trace", "1f2e"], [":path", "/"], ["x-trace", "1f2e"], ["cookie", ""]].freeze

  def encoded(fields, context = Context.new, **options)
    Compressor.new("".b, context, **options).encode(fields)
  end

  def decoded(block, context = Context.new, **options)
    Decompressor.new(block, context, **options).decode
  end

  def test_fields_keep_their_order_and_case
    assert_equal FIELDS, decoded(encoded(FIELDS))
    assert_equal FIELDS, decoded(encoded(FIELDS.each))
  end

  # RFC 7541 C.4.
  def test_the_published_requests
    context = Context.new
    list = [%w[:method GET], %w[:scheme http], %w[:path /], %w[:authority www.example.com]]
    assert_equal "828684418cf1e3c2e5f23a6ba0ab90f4ff", encoded(list, context).unpack1("H*")
    assert_equal "828684be5886a8eb10649cbf", encoded(list + [%w[cache-control no-cache]], context).unpack1("H*")
    assert_equal [%w[cache-control no-cache], %w[:authority www.example.com]], context.table
    assert_equal 110, context.compute_current_table_size
  end

  def test_sizes_are_announced
    context, reader = Context.new, Context.new
    encoded([%w[a b]], context)
    block = encoded([%w[a b]], context, table_size_limit: 10)
    assert_equal "2a400161", block.unpack1("H*")[0, 8]
    assert_equal [%w[a b]], decoded(block, reader, table_size_limit: 100)
    assert_equal [10, 10], [context.table_size, reader.table_size]
    assert_raises(Protocol::HPACK::CompressionError) { decoded("\x3f\x70\x82".b, Context.new, table_size_limit: 100) }
    assert_raises(Protocol::HPACK::CompressionError) { decoded("\x2a".b) }
  end

  # The update may have been in a block of a stream that was closed meanwhile, which the gem does not decode.
  def test_a_smaller_table_that_no_block_announces
    writer, reader = Context.new, Context.new
    assert_equal [%w[a b]], decoded(encoded([%w[a b]], writer), reader, table_size_limit: 0)
    assert_equal [%w[c d]], decoded(encoded([%w[c d]], writer, table_size_limit: 0), reader, table_size_limit: 0)
    assert_equal 0, reader.table_size
  end

  # async-http passes the peer's setting on: it allows a table of that size and asks for none.
  def test_the_peer_does_not_choose_how_much_the_encoder_keeps
    gap_of_the_original
    context, reader = Context.new, Context.new
    3000.times do |at|
      fields = [["x-request-id", at.to_s * 20]]
      block = encoded(fields, context, table_size_limit: 0xffffffff)
      assert_equal fields, decoded(block, reader, table_size_limit: 0xffffffff)
    end
    assert_equal [65_536, 65_536], [context.table_size, reader.table_size]
    assert_operator context.compute_current_table_size, :<=, 65_536
  end

  def test_what_breaks_the_rules
    ["\xff\xff\xff\xff\xff\x0f", "\x80", "\x41\x85abc", "\x00\x81\x00\x00"].each do |block|
      assert_raises(Protocol::HPACK::CompressionError, block.inspect) { decoded(block.b) }
    end
    gap_of_the_original
    ["\x40", "\xff", "\x41\xff\x80", "\x82\x20"].each do |block|
      assert_raises(Protocol::HPACK::CompressionError, block.inspect) { decoded(block.b) }
    end
    assert_raises(Protocol::HPACK::CompressionError) { Decompressor.new("\xff".b * 40 + "\0").read_integer(7) }
  end

  def test_the_parts_agree_with_the_whole
    commands = Context.new.encode(FIELDS)
    parts = Compressor.new("".b)
    commands.each { |command| parts.write_header(command) }
    assert_equal encoded(FIELDS), parts.buffer
    reader, context = Decompressor.new(parts.buffer), Context.new
    assert_equal commands.map { |command| command[:type] }, commands.map { reader.read_header.tap { |header| context.decode(header) }[:type] }
    assert_predicate reader, :end?
    assert_equal FIELDS, decoded(parts.buffer)
  end

  def test_a_context_of_a_subclass_is_asked
    asked = []
    subclass = Class.new(Context) do
      define_method(:encode) { |headers| super(headers).tap { |commands| asked << commands.size } }
      define_method(:decode) { |command| super(command).tap { asked << command[:type] } }
    end
    block = encoded([%w[a b]], subclass.new)
    assert_equal [%w[a b]], decoded(block, subclass.new)
    assert_equal [:incremental, 1, :incremental], asked
  end

  def test_a_copy_has_its_own_table
    context = Context.new([%w[a b]])
    copy = context.dup
    encoded([%w[c d]], copy)
    assert_equal [[%w[a b]], [%w[c d], %w[a b]]], [context.table, copy.table]
  end
end

# Connections of the original, whose frames the replacement reads and writes.
class ProtocolHTTP2Test < Wireloom::TestCase
  # A stream in memory: one end writes, the other one reads.
  class Pipe
    attr_accessor :peer

    def initialize = @bytes = "".b
    def take(bytes) = @bytes << bytes
    def write(bytes) = peer.take(bytes)
    def read(length) = length.zero? ? "".b : (@bytes.slice!(0, length) unless @bytes.empty?)
    def empty? = @bytes.empty?
    def flush = nil
    def close = nil
  end

  REQUEST = [[":method", "GET"], [":path", "/"]].freeze

  def setup
    limited "protocol-http2 is not installed" unless defined?(Protocol::HTTP2::Server)
    @pipes = [Pipe.new, Pipe.new]
    @pipes[0].peer, @pipes[1].peer = @pipes[1], @pipes[0]
    @client = Protocol::HTTP2::Client.new(Protocol::HTTP2::Framer.new(@pipes[0])).open!
    @server = Protocol::HTTP2::Server.new(Protocol::HTTP2::Framer.new(@pipes[1])).open!
  end

  def frames
    frames = []
    frames << @server.read_frame until @pipes[1].empty?
    frames
  end

  # An override of `window_updated` may do more than wake waiting fibers.
  def test_a_stream_with_its_own_window_updated_is_told_each_time
    told = []
    waiting = Class.new(Protocol::HTTP2::Stream) { define_method(:window_updated) { |size| told << size } }
    stream = @client.create_stream { |connection, id| waiting.create(connection, id) }
    stream.send_headers(REQUEST)
    3.times { @client.consume_window }
    @client.consume_window(7)
    assert_equal [65_535, 65_535, 65_535, 7], told
  end

  def test_frames
    stream = @client.create_stream
    stream.send_headers(REQUEST)
    stream.send_data("hello", padding_size: 3)
    stream.send_data("x" * 10_000)
    stream.send_data(nil)
    read = frames
    assert_equal %i[HeadersFrame DataFrame DataFrame DataFrame].map { |name| Protocol::HTTP2.const_get(name) }, read.map(&:class)
    assert_equal [4, 8, 0, 1], read.map(&:flags)
    assert_equal ["hello", "x" * 10_000, ""], read.drop(1).map(&:unpack)
    assert_equal [false, nil], [read[0].continued?, read[0].continuation]
    assert_equal read[1], Protocol::HTTP2::DataFrame.new(1, 8, 0, 9, read[1].payload)
    assert_equal :half_closed_remote, @server.streams[1].state
  end

  def test_continuations
    list = [["x-long", "v" * 60_000]]
    stream = @client.create_stream
    stream.send_headers(list)
    seen = nil
    @server.define_singleton_method(:decode_headers) { |data| seen = super(data) }
    assert_predicate frames.first, :continued?
    assert_equal list, seen
  end

  def test_limits_and_ends
    @pipes[0].write([1, 0, 1, 0, 0, 1].pack("CnCCN"))
    assert_raises(Protocol::HTTP2::FrameSizeError) { @server.read_frame }
    setup
    @pipes[0].write([0, 5, 0, 0, 1].pack("CnCCN") << "abc")
    assert_raises(EOFError) { @server.read_frame }
    setup
    @pipes[0].write("abc")
    assert_raises(EOFError) { @server.read_frame }
    assert_raises(EOFError) { @server.read_frame }
  end

  # A framer that reads these bytes off a StringIO, or an object of a class made of it, and that object.
  def framer_of(bytes, type = StringIO)
    stream = type.new(bytes)
    [Protocol::HTTP2::Framer.new(stream), stream]
  end

  def data(payload)
    [0, payload.bytesize, 0, 0, 1].pack("CnCCN") << payload
  end

  # Frames are read where they are, and copied.
  def test_frames_in_a_string_io
    framer, stream = framer_of(data("hello") << data("") << data("x" * 20_000) << data("cut").chop)
    frames = Array.new(3) { framer.read_frame }
    assert_equal [["hello", Encoding::BINARY], ["", Encoding::BINARY], ["x" * 20_000, Encoding::BINARY]],
                 frames.map { |frame| [frame.payload, frame.payload.encoding] }
    assert_equal 20_032, stream.pos
    stream.string.replace("y" * stream.string.bytesize)
    assert_equal "x" * 20_000, frames.last.payload
    assert_raises(EOFError) { framer_of(data("cut").chop)[0].read_frame }
    assert_raises(EOFError) { framer_of("")[0].read_frame }
  end

  def test_a_string_io_in_any_state
    framer, stream = framer_of(data("hello"))
    stream.close_read
    assert_raises(IOError) { framer.read_frame }
    framer, stream = framer_of(data("hello").freeze)
    stream.pos = 100
    assert_raises(EOFError) { framer.read_frame }
    stream.pos = 0
    assert_equal "hello", framer.read_frame.payload
    framer, = framer_of(data("hello") << data("you"))
    assert_raises(Protocol::HTTP2::FrameSizeError) { framer.read_frame(4) }
    assert_raises(EOFError) { framer.read_frame }
  end

  # Of a class, of one object, at the beginning or later.
  def test_a_string_io_with_its_own_methods
    bytes = data("hello") << data("you")
    called = []
    own = Class.new(StringIO)
    framer, = framer_of(bytes.dup, own)
    assert_equal "hello", framer.read_frame.payload
    own.define_method(:read) { |length| super(length).tap { called << length } }
    assert_equal "you", framer.read_frame.payload
    assert_equal [9, 3], called

    framer, stream = framer_of(bytes.dup, Class.new(StringIO))
    assert_equal "hello", framer.read_frame.payload
    stream.define_singleton_method(:read) { |length| super(length).tap { called << length } }
    assert_equal "you", framer.read_frame.payload
    assert_equal [9, 3, 9, 3], called

    framer, stream = framer_of(bytes.dup, Class.new(StringIO))
    stream.define_singleton_method(:other) { nil }
    assert_equal "hello", framer.read_frame.payload
    stream.define_singleton_method(:read) { |length| super(length).tap { called << length } }
    assert_equal "you", framer.read_frame.payload
    assert_equal [9, 3, 9, 3, 9, 3], called
  end

  def test_identifiers_that_no_frame_holds
    [-5, 2**31].each do |id|
      stream = Protocol::HTTP2::Stream.create(@client, id)
      assert_raises(Protocol::HTTP2::ProtocolError) { stream.send_headers(REQUEST) }
      stream.state = :open
      assert_raises(Protocol::HTTP2::ProtocolError) { stream.send_data("hello") }
      stream.local_window.consume(40_000)
      assert_raises(Protocol::HTTP2::ProtocolError) { stream.receive_data(Protocol::HTTP2::DataFrame.new(1, 0, 0, 5, "hello")) }
    end
    assert_empty @pipes[1]
  end

  def test_frozen_objects
    @client.create_stream.send_headers(REQUEST, Protocol::HTTP2::END_STREAM)
    frames
    stream = @server.streams.freeze[1]
    assert_raises(FrozenError) { stream.send_headers([[":status", "200"]], Protocol::HTTP2::END_STREAM) }
    assert_same stream, @server.streams[1]

    stream = @client.create_stream
    stream.remote_window.freeze
    stream.send_headers(REQUEST)
    assert_raises(FrozenError) { stream.send_data("hello") }
    stream.freeze
    assert_raises(FrozenError) { stream.send_headers([%w[x-end yes]], Protocol::HTTP2::END_STREAM) }
  end

  # Calls with objects that are none of the gem's, and streams that hold such, end in exceptions of Ruby.
  def test_objects_of_other_kinds
    gap_of_the_original
    stream = @client.create_stream
    refused = lambda do |&call|
      call.call
    rescue StandardError => e
      refute_kind_of Wireloom::InternalError, e
    end
    [nil, 5, 2**70, :open, "text", [], [[nil, 1]], [1], Object.new, stream, BasicObject.new].each do |object|
      %i[send_headers send_data receive_headers receive_data process_headers process_data available_frame_size].each do |name|
        refused.call { stream.public_send(name, object) }
      end
      %i[@connection @local_window @remote_window @id @state].each do |name|
        victim = @client.create_stream
        victim.instance_variable_set(name, object)
        refused.call { victim.send_headers(REQUEST) }
        refused.call { victim.send_data("x") }
        refused.call { victim.receive_data(Protocol::HTTP2::DataFrame.new(1, 0, 0, 1, "x")) }
      end
    end
  end

  def test_streams_hear_that_the_connections_window_grows
    grown = []
    type = Class.new(Protocol::HTTP2::Stream) { define_method(:window_updated) { |size| grown << [id, size] } }
    @client.create_stream.send_headers(REQUEST)
    @client.create_stream { |connection, id| type.create(connection, id) }.send_headers(REQUEST)
    update = [4, 8, 0, 0, 7].pack("xnCCNN")
    @pipes[1].write(update)
    @client.read_frame
    assert_equal [[3, 65_542]], grown
    @client.streams.delete(3)
    singleton = @client.streams[1]
    singleton.define_singleton_method(:window_updated) { |size| grown << size }
    @pipes[1].write(update)
    @client.read_frame
    assert_equal [[3, 65_542], 65_549], grown
  end

  # async-http calls it before each frame.
  def test_active_streams_are_told_what_may_be_sent
    told = []
    type = Class.new(Protocol::HTTP2::Stream) do
      define_method(:window_updated) do |size|
        told << [id, size]
        raise "enough" if told.size >= 4

        connection.streams.delete(id)
      end
    end
    idle = Class.new(type) { def active? = false }
    [type, type, idle, Protocol::HTTP2::Stream, type].each do |each|
      @client.create_stream { |connection, id| each.create(connection, id) }.send_headers(REQUEST)
    end
    @client.create_stream { |connection, id| type.create(connection, id) }
    assert_equal [5, 7, 11], @client.consume_window.keys
    assert_equal [[1, 65_535], [3, 65_535], [9, 65_535]], told
    assert_nil @client.consume_window(0)
    @client.create_stream { |connection, id| type.create(connection, id) }.send_headers(REQUEST)
    assert_raises(RuntimeError) { @client.consume_window(5) }
    assert_equal [13, 5], told.last
    assert_raises(RuntimeError) { @client.consume_window }
  end

  # Methods that a program redefines in the gem's classes are called from then on.
  def test_changed_classes
    kept = in_child do
      stream = @client.create_stream
      stream.send_headers(REQUEST)
      frames
      lengths = []
      Protocol::HTTP2::Frame.class_eval do
        alias_method :read_payload_before, :read_payload
        remove_method :read_payload
        define_method(:read_payload) { |io| read_payload_before(io).tap { lengths << length } }
      end
      stream.send_data("hello")
      frames
      lengths
    end
    assert_equal [5], kept
  end

  def test_a_method_that_is_overridden_while_a_frame_is_awaited
    seen = []
    server = @server
    @pipes[1].define_singleton_method(:read) do |length|
      unless server.singleton_methods.include?(:receive_headers)
        server.define_singleton_method(:receive_headers) { |frame| super(frame).tap { seen << frame.class } }
      end
      super(length)
    end
    @client.create_stream.send_headers(REQUEST)
    frames
    assert_equal [Protocol::HTTP2::HeadersFrame], seen
  end

  # A class that is known as one of streams is not known as one of headers.
  def test_a_stream_as_headers
    type = Class.new(Protocol::HTTP2::Stream) do
      def initialize(*)
        super
        @all = [[%w[x-all 1]]]
      end

      def each = yield("x-each", "2")
    end
    seen = []
    @server.define_singleton_method(:decode_headers) { |data| super(data).tap { |list| seen << list } }
    stream = @client.create_stream { |connection, id| type.create(connection, id) }
    stream.send_headers(REQUEST)
    @client.create_stream.send_headers(stream)
    frames
    assert_equal [REQUEST, [%w[x-each 2]]], seen
  end

  # Questions to a class run code of the program: another thread may end this one there, and streams may come.
  def test_code_of_the_program_while_a_class_is_looked_at
    gap_of_the_original
    client = @client
    asked = -> {}
    type = Class.new(Protocol::HTTP2::Stream) { define_singleton_method(:instance_method) { |name| asked.call && super(name) } }
    open = -> { client.create_stream { |connection, id| type.create(connection, id) } }
    stream = open.call
    asked = -> { Thread.exit }
    assert_nil Thread.new { stream.send_headers(REQUEST) && :went_on }.value
    asked = -> { throw :out, :left }
    assert_equal(:left, catch(:out) { stream.send_headers(REQUEST) && :went_on })
    errors = []
    asked = lambda do
      client.create_stream
    rescue RuntimeError => e
      errors << e.message
    end
    2.times { client.consume_window }
    stream.send_headers(REQUEST)
    assert_empty errors
    assert_equal :open, stream.state
  end

  def test_overridden_methods
    seen = []
    framer = Class.new(Protocol::HTTP2::Framer) { define_method(:read_frame) { |*size| super(*size).tap { |frame| seen << frame.class } } }
    @server = Protocol::HTTP2::Server.new(framer.new(@pipes[1])).open!
    @client.create_stream.send_headers(REQUEST, Protocol::HTTP2::END_STREAM)
    frames
    assert_equal [Protocol::HTTP2::HeadersFrame], seen
  end
end
