# frozen_string_literal: true

require "stringio"
require_relative "../stories"

module Bench
  # The IO of one end, in memory, whose methods are those of StringIO but for `write`, so that it costs little beside either
  # library.
  class Wire < StringIO
    attr_writer :peer

    alias empty? eof?

    def initialize
      super("".b)
    end

    def write(bytes)
      @peer.take(bytes)
    end

    def take(bytes)
      if eof?
        string.clear
        rewind
      end
      string << bytes
    end

    def close = nil
  end

  # Both ends of a connection of protocol-http2, in this process.
  class Ends
    REQUEST = [[":scheme", "https"], [":method", "GET"], [":authority", "www.example.org"], [":path", "/"],
               ["accept", "*/*"], ["user-agent", "bench"]].freeze
    ANSWER = [[":status", "200"], ["content-type", "text/plain"], ["content-length", "5"]].freeze

    attr_reader :client, :server

    def initialize
      @wires = [Wire.new, Wire.new]
      @wires.zip(@wires.reverse) { |wire, peer| wire.peer = peer }
      framers = @wires.map { |wire| Protocol::HTTP2::Framer.new(wire) }
      @client = Protocol::HTTP2::Client.new(framers[0]).open!
      @server = Protocol::HTTP2::Server.new(framers[1]).open!
    end

    def exchange
      until @wires[0].empty? && @wires[1].empty?
        @server.read_frame until @wires[1].empty?
        @client.read_frame until @wires[0].empty?
      end
    end

    # The server's streams are of this class.
    def serve(type)
      @server.define_singleton_method(:accept_stream) { |id| create_stream(id) { |connection, at| type.create(connection, at) } }
    end
  end

  row "protocol-http2/streams", "5,000 streams over one connection, both ends",
      gem: "protocol_http2", per: "stream", bar: 5 do |c|
    answers = Class.new(Protocol::HTTP2::Stream) do
      def process_headers(frame)
        super.tap do
          send_headers(Ends::ANSWER)
          send_data("hello", Protocol::HTTP2::END_STREAM)
        end
      end
    end
    answered = 0
    client = Class.new(Protocol::HTTP2::Stream) { define_method(:closed) { |_ = nil| answered += 1 } }
    lambda do
      answered = 0
      ends = Ends.new
      ends.serve(answers)
      count = c.size(5_000, 5)
      count.times do
        stream = ends.client.create_stream { |connection, id| client.create(connection, id) }
        stream.send_headers(Ends::REQUEST, Protocol::HTTP2::END_STREAM)
        ends.exchange
      end
      c.check(answered == count, "#{answered} answered")
      count
    end
  end

  row "protocol-http2/upload", "16 MiB of DATA up one stream, both ends",
      gem: "protocol_http2", per: "upload", bar: 2 do |c|
    received = 0
    type = Class.new(Protocol::HTTP2::Stream) do
      define_method(:process_data) { |frame| super(frame).tap { |data| received += data.bytesize } }
    end
    size = c.size(16 << 20, 1 << 17)
    body = "0123456789abcdef" * (size / 16)
    lambda do
      received = 0
      ends = Ends.new
      ends.serve(type)
      stream = ends.client.create_stream
      stream.send_headers(Ends::REQUEST)
      at = 0
      while at < size
        chunk = body.byteslice(at, stream.available_frame_size)
        at += chunk.bytesize
        stream.send_data(chunk, at == size ? Protocol::HTTP2::END_STREAM : 0)
        ends.exchange
      end
      c.check(received == size, "#{received} bytes arrived")
      1
    end
  end

  row "protocol-http2/hpack-decode", "HPACK decoding of #{Stories.name}",
      gem: "protocol_http2", per: "field", bar: Stories.bar(20) do |c|
    stories = Stories.read(c.size(31, 1))
    blocks = stories.map do |lists|
      context = Protocol::HPACK::Context.new
      lists.map { |list| Protocol::HPACK::Compressor.new("".b, context).encode(list) }
    end
    lambda do
      fields = 0
      last = nil
      blocks.each do |story|
        context = Protocol::HPACK::Context.new
        story.each { |block| fields += (last = Protocol::HPACK::Decompressor.new(block, context).decode).size }
      end
      c.check(last == stories.last.last)
      fields
    end
  end

  row "protocol-http2/hpack-encode", "HPACK encoding of #{Stories.name}",
      gem: "protocol_http2", per: "field", bar: Stories.bar(20) do |c|
    stories = Stories.read(c.size(31, 1))
    fields = stories.flatten(1).sum(&:size)
    bytes = nil
    lambda do
      size = stories.sum do |lists|
        context = Protocol::HPACK::Context.new
        lists.sum { |list| Protocol::HPACK::Compressor.new("".b, context).encode(list).bytesize }
      end
      c.check(size == (bytes ||= size))
      fields
    end
  end
end
