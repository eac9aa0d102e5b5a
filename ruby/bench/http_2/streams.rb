# frozen_string_literal: true

# 5,000 requests over one connection, both ends in this process, with listeners as an application has them.
# ORIGINAL=1 runs the installed http-2 instead of the drop-in. Prints CPU seconds and objects allocated per stream.
require ENV["ORIGINAL"] == "1" ? "http/2" : "wireloom/drop_in/http_2"

STREAMS = Integer(ENV.fetch("STREAMS", "5000"))
REQUEST = [[":scheme", "https"], [":method", "GET"], [":authority", "www.example.org"], [":path", "/resource"],
           ["accept", "*/*"], ["user-agent", "bench/1.0"]].freeze
RESPONSE = [[":status", "200"], ["content-type", "text/plain"], ["content-length", "12"], ["server", "bench"]].freeze
BODY = "hello, world"

def connect
  client = HTTP2::Client.new
  server = HTTP2::Server.new
  client.on(:frame) { |bytes| server << bytes }
  server.on(:frame) { |bytes| client << bytes }
  server.on(:stream) do |stream|
    request = nil
    stream.on(:active) { nil }
    stream.on(:headers) { |headers| request = headers }
    stream.on(:data) { nil }
    stream.on(:close) { nil }
    stream.on(:half_close) do
      raise "headers" unless request.size == REQUEST.size

      stream.headers(RESPONSE, end_stream: false)
      stream.data(BODY)
    end
  end
  client
end

def run(client, streams)
  done = 0
  streams.times do
    stream = client.new_stream
    bytes = 0
    stream.on(:headers) { |headers| raise "headers" unless headers.size == RESPONSE.size }
    stream.on(:data) { |data| bytes += data.bytesize }
    stream.on(:half_close) { nil }
    stream.on(:close) { done += 1 if bytes == BODY.bytesize }
    stream.headers(REQUEST, end_stream: true)
  end
  raise "#{done} of #{streams} answered" unless done == streams
end

client = connect
run(client, 50)
GC.start
objects = GC.stat(:total_allocated_objects)
began = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
run(client, STREAMS)
seconds = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - began
objects = GC.stat(:total_allocated_objects) - objects
puts format("%.4f %.1f", seconds, objects.fdiv(STREAMS))
