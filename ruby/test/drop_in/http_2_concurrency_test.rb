# frozen_string_literal: true

require_relative "../support/http_2"
require_relative "../support/scheduler"
require "socket"

# Connections under threads, a fiber scheduler and Ractors, as guides/concurrency.md describes them.
class HTTP2ConcurrencyTest < HTTP2TestCase
  def setup
    skip "an old original" if OLD
  end

  # A client and a server, each with a Mutex, joined by sockets that two threads read.
  class Ends
    attr_reader :client, :lock

    def initialize(sockets)
      @client = HTTP2::Client.new
      @lock = Mutex.new
      server = HTTP2::Server.new
      serve(server)
      @threads = [[@client, sockets[0], @lock], [server, sockets[1], Mutex.new]].map do |connection, socket, lock|
        connection.on(:frame) { |bytes| socket.write(bytes) && nil }
        Thread.new { read(connection, socket, lock) }
      end
    end

    def join
      @threads.each(&:join)
    end

    private

    def serve(server)
      server.on(:stream) do |stream|
        body = +""
        stream.on(:data) { |data| (body << data) && nil }
        stream.on(:half_close) do
          stream.headers([[":status", "200"]])
          stream.data(body.upcase)
        end
      end
    end

    def read(connection, socket, lock)
      loop do
        bytes = socket.readpartial(4096)
        lock.synchronize { connection << bytes }
      end
    rescue EOFError, IOError, Errno::ECONNRESET
      nil
    end
  end

  def test_several_threads_behind_a_mutex
    sockets = UNIXSocket.pair
    ends = Ends.new(sockets)
    ends.lock.synchronize { ends.client.send_connection_preface }
    answers = Array.new(4) do |at|
      Thread.new do
        Array.new(10) do |turn|
          answer = Queue.new
          ends.lock.synchronize do
            stream = ends.client.new_stream
            body = +""
            stream.on(:data) { |data| (body << data) && nil }
            stream.on(:close) { |error| (answer << (error || body)) && nil }
            stream.headers([[":method", "POST"], [":scheme", "http"], [":authority", "x"], [":path", "/#{at}/#{turn}"]])
            stream.data("body #{at}.#{turn}")
          end
          answer.pop
        end
      end
    end.map(&:value)
    assert_equal(Array.new(4) { |at| Array.new(10) { |turn| "BODY #{at}.#{turn}" } }, answers)
  ensure
    sockets&.each { |socket| socket.shutdown rescue nil }
    ends&.join
    sockets&.each(&:close)
  end

  def test_fibers_of_a_scheduler
    sockets = UNIXSocket.pair
    answers = []
    server = HTTP2::Server.new
    server.on(:frame) { |bytes| sockets[1].write(bytes) && nil }
    server.on(:stream) { |stream| stream.on(:half_close) { stream.headers([[":status", "204"]], end_stream: true) } }
    client = HTTP2::Client.new
    client.on(:frame) { |bytes| sockets[0].write(bytes) && nil }
    ask = lambda do
      3.times do
        stream = client.new_stream
        stream.on(:headers) { |headers| (answers << headers) && nil }
        stream.on(:close) { (sockets[0].close_write if answers.size == 6) && nil }
        stream.headers(REQUEST, end_stream: true)
        sleep 0.001
      end
    end
    read = ->(connection, socket) { connection << socket.readpartial(20) while true }
    serve = lambda do
      read.call(server, sockets[1])
    rescue EOFError
      sockets[1].close_write
    end
    receive = lambda do
      read.call(client, sockets[0])
    rescue EOFError
      nil
    end
    client.send_connection_preface
    Scheduler.run(serve, receive, ask, ask)
    assert_equal [[[":status", "204"]]] * 6, answers
  ensure
    sockets&.each(&:close)
  end

  def test_connections_in_ractors
    needs_sound_ractors
    gap_of_the_original
    ractors = Array.new(4) do |at|
      Ractor.new(at) do |number|
        client, server = HTTP2::Client.new, HTTP2::Server.new
        client.on(:frame) { |bytes| server << bytes }
        server.on(:frame) { |bytes| client << bytes }
        server.on(:stream) do |stream|
          stream.on(:half_close) { stream.headers([[":status", "200"], ["x-number", number.to_s]], end_stream: true) }
        end
        seen = []
        client.send_connection_preface
        3.times do
          stream = client.new_stream
          stream.on(:headers) { |headers| (seen << headers.last.last) && nil }
          stream.headers([[":method", "GET"], [":scheme", "http"], [":authority", "x"], [":path", "/"]], end_stream: true)
        end
        client.goaway
        seen
      end
    end
    results = ractors.map { |ractor| ractor.respond_to?(:value) ? ractor.value : ractor.take }
    assert_equal(Array.new(4) { |at| [at.to_s] * 3 }, results)
  end

  # Use without a Mutex damages no memory: the program gets an exception, or frames that the peer refuses.
  def test_threads_without_a_mutex_do_not_end_the_process
    gap_of_the_original
    client, server = pair
    errors = Queue.new
    Array.new(4) do
      Thread.new do
        25.times do
          stream = client.new_stream
          stream.headers(REQUEST, end_stream: false)
          Thread.pass
          stream.data("x" * 100)
        rescue HTTP2::Error::Error => e
          errors << e
        end
      end
    end.each(&:join)
    assert_includes [:connected, :closed], server.state
    assert_operator errors.size, :<=, 100
  end
end
