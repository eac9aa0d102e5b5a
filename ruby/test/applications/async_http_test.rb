# frozen_string_literal: true

# The server logs what fails.
ENV["CONSOLE_LEVEL"] ||= "fatal"
require_relative "../test_helper"
original_or_drop_in "protocol_http2", "protocol/http2/client"
require_needed "async", "async/http", "async/http/endpoint", "async/http/server", "async/http/client"

# async-http as it is, which Falcon is made of, over HTTP/2: its client and its server.
class AsyncHTTPTest < Wireloom::TestCase
  # Serves +app+ and yields a client.
  def serve(app)
    protocol = Async::HTTP::Protocol::HTTP2
    Async do |task|
      task.with_timeout(30) do
        bound = Async::HTTP::Endpoint.parse("http://127.0.0.1:0/", protocol: protocol).bound
        running = Async::HTTP::Server.new(app, bound, protocol: protocol, scheme: "http").run
        port = bound.sockets.first.to_io.local_address.ip_port
        client = Async::HTTP::Client.new(Async::HTTP::Endpoint.parse("http://127.0.0.1:#{port}/", protocol: protocol))
        yield client, task
      ensure
        client&.close
        running&.stop
        bound&.close
      end
    end.wait
  end

  def echo
    lambda do |request|
      headers = request.headers.to_a.reject { |name, _| name.start_with?(":") }
      Protocol::HTTP::Response[200, headers + [["x-path", request.path]], [request.method, " ", request.read || ""]]
    end
  end

  def test_requests_and_answers
    serve(echo) do |client,|
      response = client.get("/a?b=c", [["x-long", "v" * 5_000], ["cookie", "a=b"]])
      assert_equal ["/a?b=c"], Array(response.headers["x-path"])
      assert_equal "GET ", response.read
      body = "0123456789" * 20_000
      assert_equal "POST #{body}", client.post("/", [], [body]).read
    end
  end

  def test_many_streams_at_once
    serve(echo) do |client, task|
      answers = Array.new(100) { |at| task.async { client.post("/#{at}", [["x-number", at.to_s]], ["body #{at}"]).read } }.map(&:wait)
      assert_equal Array.new(100) { |at| "POST body #{at}" }, answers
    end
  end

  # Bodies that wait for the windows of their streams and of the connection.
  def test_many_bodies_that_are_longer_than_a_window
    body = "0123456789" * 20_000
    serve(echo) do |client, task|
      answers = Array.new(20) { |at| task.async { client.post("/#{at}", [], [body]).read } }.map(&:wait)
      assert_equal ["POST #{body}"] * 20, answers
    end
  end

  # async-http tells all streams of their windows before each frame: here those whose bodies go on meanwhile.
  def test_streams_are_told_of_windows_that_have_grown
    gap_of_the_original
    require "protocol/http/body/writable"
    bodies = []
    app = lambda do |request|
      next echo.call(request) unless request.path == "/open"

      bodies << Protocol::HTTP::Body::Writable.new
      bodies.last.write("begun")
      Protocol::HTTP::Response[200, [], bodies.last]
    end
    told = 0
    owner = Async::HTTP::Protocol::HTTP2::Output
    trace = TracePoint.new(:call) { |event| told += 1 if event.method_id == :window_updated && event.defined_class == owner }
    serve(app) do |client,|
      responses = Array.new(20) { client.get("/open") }
      trace.enable { 20.times { |at| assert_equal "POST body", client.post("/#{at}", [], ["body"]).read } }
      bodies.each(&:close_write)
      assert_equal ["begun"] * 20, responses.map(&:read)
    end
    assert_operator told, :<=, 20
  end

  def test_a_stream_that_fails_leaves_the_others
    serve(->(request) { request.path == "/bad" ? raise(ArgumentError, "bad") : echo.call(request) }) do |client, task|
      answers = %w[/good /bad /good].map do |path|
        task.async do
          client.get(path).then { |response| [response.status, response.read] }
        rescue StandardError => e
          e.class
        end
      end.map(&:wait)
      assert_equal [200, "GET "], answers[0]
      assert_equal answers[0], answers[2]
      refute_equal answers[0], answers[1]
    end
  end
end
