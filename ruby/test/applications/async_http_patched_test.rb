# frozen_string_literal: true

ENV["CONSOLE_LEVEL"] ||= "fatal"
require_relative "../test_helper"
original_or_drop_in "protocol_http2", "protocol/http2/client"
require_needed "async", "async/http", "async/http/endpoint", "async/http/server", "async/http/client"

# A program that changes async-http or what it writes to: its methods are called. Each test runs in a process of its own, since nothing
# takes a change back.
class AsyncHTTPPatchedTest < Wireloom::TestCase
  def requests(count)
    protocol = Async::HTTP::Protocol::HTTP2
    Async do |task|
      task.with_timeout(30) do
        bound = Async::HTTP::Endpoint.parse("http://127.0.0.1:0/", protocol: protocol).bound
        app = ->(_) { Protocol::HTTP::Response[200, [], ["body"]] }
        running = Async::HTTP::Server.new(app, bound, protocol: protocol, scheme: "http").run
        port = bound.sockets.first.to_io.local_address.ip_port
        client = Async::HTTP::Client.new(Async::HTTP::Endpoint.parse("http://127.0.0.1:#{port}/", protocol: protocol))
        count.times { raise "another body" unless client.get("/").read == "body" }
      ensure
        client&.close
        running&.stop
        bound&.close
      end
    end.wait
  end

  # How often the block's counter was called for two requests after it was put in place, after two others.
  def calls
    reader, writer = IO.pipe
    pid = fork do
      count = 0
      requests(2)
      yield -> { count += 1 }
      requests(2)
      writer.puts(count)
      exit!(0)
    end
    writer.close
    Process.wait(pid)
    reader.read.to_i
  end

  {
    "a connection's write_frame" => [-> { Async::HTTP::Protocol::HTTP2::Connection }, :write_frame, 4],
    "a connection's synchronize" => [-> { Async::HTTP::Protocol::HTTP2::Server }, :synchronize, 6],
    "a semaphore's acquire" => [-> { Async::Semaphore }, :acquire, 8],
    "a stream's write" => [-> { IO::Stream::Buffered }, :write, 8],
    "a stream's read" => [-> { IO::Stream::Buffered }, :read, 8],
    "a body's read" => [-> { Protocol::HTTP::Body::Buffered }, :read, 4],
    "merged headers" => [-> { Protocol::HTTP::Headers::Merged }, :each, 4]
  }.each do |what, (owner, name, least)|
    define_method("test_#{what.tr(" '", "__")}") do
      found = calls do |counter|
        owner.call.prepend(Module.new do
          define_method(name) do |*arguments, **options, &block|
            counter.call
            super(*arguments, **options, &block)
          end
        end)
      end
      assert_operator found, :>=, least
    end
  end
end
