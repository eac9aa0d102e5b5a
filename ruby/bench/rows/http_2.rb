# frozen_string_literal: true

require_relative "../stories"

module Bench
  # Requests over one connection, both ends in this process, in the shape of the benchmark that http-2 publishes: each end
  # collects what it sends in a buffer, and every event has a listener.
  class Requests
    REQUEST = { ":scheme" => "http", ":method" => "GET", ":authority" => "localhost:8080", ":path" => "/",
                "accept" => "*/*" }.freeze
    ANSWER = "Hello HTTP 2.0! GET request"

    def initialize(contestant)
      @contestant = contestant
      @to_server = "".b
      @to_client = "".b
      @client = HTTP2::Client.new
      @server = HTTP2::Server.new
      listen
    end

    # Sends a number of requests one after another, and returns how many were answered.
    def run(count)
      @answered = 0
      count.times { request }
      @contestant.check(@answered == count, "#{@answered} of #{count} requests answered")
      count
    end

    private

    def listen
      @client.on(:frame) { |bytes| @to_server << bytes }
      @server.on(:frame) { |bytes| @to_client << bytes }
      [@client, @server].each do |connection|
        %i[frame_sent frame_received goaway].each { |event| connection.on(event) { |_| nil } }
      end
      @client.on(:altsvc) { |_| nil }
      @server.on(:stream) { |stream| serve(stream) }
    end

    def serve(stream)
      body = "".b
      %i[active close headers].each { |event| stream.on(event) { |*| nil } }
      stream.on(:data) do |data|
        body << data
        nil
      end
      stream.on(:half_close) do
        stream.headers({ ":status" => "200", "content-length" => ANSWER.bytesize.to_s, "content-type" => "text/plain",
                         "x-stream-id" => "stream-#{stream.id}" }, end_stream: false)
        stream.data(ANSWER[0, 5], end_stream: false)
        stream.data(ANSWER[5..])
      end
    end

    def request
      stream = @client.new_stream
      body = "".b
      fields = 0
      stream.on(:headers) do |headers|
        fields += headers.size
        nil
      end
      stream.on(:data) do |data|
        body << data
        nil
      end
      %i[half_close altsvc].each { |event| stream.on(event) { |*| nil } }
      stream.on(:close) { @answered += 1 if body == ANSWER && fields == 4 }
      stream.headers(REQUEST, end_stream: true)
      exchange until @to_server.empty? && @to_client.empty?
    end

    def exchange
      pass(@to_server, @server)
      pass(@to_client, @client)
    end

    def pass(bytes, connection)
      return if bytes.empty?

      chunk = bytes.dup
      bytes.clear
      connection << chunk
    end
  end

  row "http-2/streams", "5,000 streams over one connection, both ends, a listener for every event",
      gem: "http_2", per: "stream", bar: 8 do |c|
    -> { Requests.new(c).run(c.size(5_000, 5)) }
  end

  row "http-2/memory", "100,000 streams over one connection, growth from the 10,000th on",
      gem: "http_2", per: "stream", bar: 1 << 20, measure: :memory do |c|
    requests = Requests.new(c)
    -> { requests.run(c.size(10_000, 5)) }
  end

  # Encodes the lists of one connection.
  def self.encode(lists)
    compressor = HTTP2::Header::Compressor.new
    lists.map { |list| compressor.encode(list) }
  end

  row "http-2/hpack-decode", "HPACK decoding of #{Stories.name}",
      gem: "http_2", per: "field", bar: Stories.bar(35) do |c|
    stories = Stories.read(c.size(31, 1))
    blocks = stories.map { |lists| encode(lists) }
    lambda do
      fields = 0
      last = nil
      blocks.each do |story|
        decompressor = HTTP2::Header::Decompressor.new
        story.each { |block| fields += (last = decompressor.decode(block.dup)).size }
      end
      c.check(last == stories.last.last)
      fields
    end
  end

  row "http-2/hpack-encode", "HPACK encoding of #{Stories.name}",
      gem: "http_2", per: "field", bar: Stories.bar(30) do |c|
    stories = Stories.read(c.size(31, 1))
    fields = stories.flatten(1).sum(&:size)
    bytes = nil
    lambda do
      size = stories.sum { |lists| encode(lists).sum(&:bytesize) }
      c.check(size == (bytes ||= size))
      fields
    end
  end

  row "http-2/upload", "16 MiB of DATA up one stream, both ends",
      gem: "http_2", per: "upload" do |c|
    client = HTTP2::Client.new
    server = HTTP2::Server.new
    client.on(:frame) { |bytes| server << bytes }
    server.on(:frame) { |bytes| client << bytes }
    received = 0
    server.on(:stream) do |stream|
      stream.on(:data) do |data|
        received += data.bytesize
        nil
      end
      stream.on(:half_close) { stream.headers({ ":status" => "200" }, end_stream: true) }
    end
    size = c.size(16 << 20, 1 << 17)
    body = "0123456789abcdef" * (size / 16)
    lambda do
      received = 0
      stream = client.new_stream
      stream.headers(Requests::REQUEST.merge(":method" => "POST"), end_stream: false)
      stream.data(body.dup)
      c.check(received == size && stream.state == :closed, "#{received} bytes arrived")
      1
    end
  end
end
