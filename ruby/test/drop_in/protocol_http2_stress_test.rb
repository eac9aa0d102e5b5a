# frozen_string_literal: true
# GC.stress: short

require_relative "../test_helper"
require "stringio"
require "wireloom/drop_in/protocol_http2" unless ORIGINAL

# Every way that frames take through the native part, a few times: for GC.stress and compaction.
class ProtocolHTTP2StressTest < Wireloom::TestCase
  REQUEST = [[":method", "GET"], [":path", "/"], ["x-name", "value" * 8]].freeze

  # One end, whose methods may do anything.
  class Pipe < StringIO
    attr_writer :peer, :hook

    def write(bytes)
      @hook&.call(bytes)
      @peer.take(bytes)
    end

    def take(bytes)
      at = pos
      self.pos = size
      StringIO.instance_method(:write).bind_call(self, bytes)
      self.pos = at
    end

    def close = nil
  end

  def setup
    gap_of_the_original
    limited "protocol-http2 is not installed" unless defined?(Protocol::HTTP2::Server)
    @pipes = [Pipe.new("".b), Pipe.new("".b)]
    @pipes[0].peer, @pipes[1].peer = @pipes[1], @pipes[0]
    @client = Protocol::HTTP2::Client.new(Protocol::HTTP2::Framer.new(@pipes[0])).open!
    @server = Protocol::HTTP2::Server.new(Protocol::HTTP2::Framer.new(@pipes[1])).open!
  end

  def exchange
    frames = []
    until @pipes.all?(&:eof?)
      frames << @server.read_frame until @pipes[1].eof?
      frames << @client.read_frame until @pipes[0].eof?
    end
    frames
  end

  def test_streams
    answers = Class.new(Protocol::HTTP2::Stream) do
      def process_headers(frame) = super.tap { |list| (@seen ||= []) << list }
      def process_data(frame) = super.tap { |data| (@seen ||= []) << data }
      attr_reader :seen
    end
    @server.define_singleton_method(:accept_stream) { |id| create_stream(id) { |connection, at| answers.create(connection, at) } }
    stream = @client.create_stream
    stream.send_headers(REQUEST)
    # Above and below the length up to which header and payload are written together, and until the windows are given back.
    [10, 5_000, 16_384, 16_000].each { |size| stream.send_data("d" * size) }
    stream.send_data(nil)
    exchange
    answer = @server.streams[1]
    assert_equal [REQUEST, 10, 5_000, 16_384, 16_000, 0], answer.seen.map { |part| part.is_a?(String) ? part.bytesize : part }
    answer.send_headers([[":status", "200"], ["x-long", "v" * 20_000]])
    answer.send_data("answer", Protocol::HTTP2::END_STREAM)
    assert_equal [true, "answer"], exchange.last(2).then { |headers, data| [headers.continued?, data.unpack] }
    assert_equal [:closed, :closed], [stream.state, answer.state]
  end

  # The peer has not got the fields that are in the table then.
  def test_a_field_block_that_there_is_no_memory_to_write
    answers = Class.new(Protocol::HTTP2::Stream) do
      def process_headers(frame) = super.tap { |list| @seen = list }
      attr_reader :seen
    end
    @server.define_singleton_method(:accept_stream) { |id| create_stream(id) { |connection, at| answers.create(connection, at) } }
    @pipes[0].hook = ->(_) { raise NoMemoryError }
    assert_raises(NoMemoryError) { @client.create_stream.send_headers(REQUEST) }
    @pipes[0].hook = nil
    stream = @client.create_stream
    stream.send_headers(REQUEST)
    exchange
    assert_equal REQUEST, @server.streams[stream.id].seen
  end

  def test_exceptions_on_the_way
    stream = @client.create_stream
    stream.send_headers(REQUEST)
    @pipes[0].hook = ->(_) { raise IOError, "mine" }
    assert_raises(IOError) { stream.send_data("hello") }
    assert_raises(IOError) { @client.create_stream.send_headers(REQUEST) }
    assert_equal(:left, catch(:out) do
      @pipes[0].hook = ->(_) { throw :out, :left }
      stream.send_data("x" * 6_000)
    end)
    @pipes[0].hook = ->(_) { @client.close }
    stream.send_data("last")
    assert_equal :closed, stream.state
  end
end
