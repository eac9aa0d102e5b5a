# frozen_string_literal: true

require_relative "test_helper"
require "wireloom"

class HTTP2Test < Wireloom::TestCase
  include Wireloom::HTTP2

  REQUEST = [[":method", "GET"], [":scheme", "https"], [":authority", "example.org"], [":path", "/"]].freeze
  POST = [[":method", "POST"], *REQUEST[1..-1]].freeze
  RESPONSE = [[":status", "200"], %w[content-type text/plain]].freeze

  def setup
    @client = Client.new
    @server = Server.new
  end

  # Moves bytes both ways until both are silent; returns the events of the client and of the server.
  def exchange(size: nil)
    seen = [[], []]
    ends = [@client, @server]
    while ends.any?(&:output?)
      ends.each_with_index do |from, at|
        bytes = from.take_output
        parts = size ? bytes.scan(/.{1,#{size}}/mn) : [bytes]
        parts.each { |part| seen[1 - at].concat(ends[1 - at].receive(part)) }
      end
    end
    seen.map { |events| events.reject { |event| event.is_a?(Settings) || event.is_a?(SettingsAcknowledged) } }
  end

  # A frame of which a part was read: its deadline does not run while the program reads no more.
  def test_a_peer_is_not_late_while_nothing_is_read
    @client.request(REQUEST)
    exchange
    @client.request([*REQUEST, ["x", "y" * 100]])
    @server.receive(@client.take_output[..-2])
    refute_nil @server.timeout
    @server.reading = false
    assert_nil @server.timeout
    @server.reading = true
    refute_nil @server.timeout
  end

  def test_output_counts_to_the_size
    require "objspace"
    stream = @client.request(POST)
    exchange
    before = ObjectSpace.memsize_of(@client)
    @client.data(stream, "x" * 50_000)
    assert_operator ObjectSpace.memsize_of(@client), :>=, before + 50_000
  end

  def test_fields_that_would_be_others_are_not_sent
    post = @client.request(POST)
    exchange
    [["x", "a\r\nset-cookie: b"], ["x", "a\0"], ["x\r\ny", "a"], ["x y", "a"], ["", "a"], ["x", " a"]].each do |field|
      assert_raises(Error) { @client.request([*REQUEST, field]) }
      assert_raises(Error) { @client.trailers(post, [field]) }
      assert_raises(Error) { @server.inform(post, [%w[:status 103], field]) }
      assert_raises(Error) { @server.promise(post, [*REQUEST, field]) }
      assert_raises(Error) { @server.respond(post, [*RESPONSE, field]) }
    end
    error = assert_raises(Error) { @client.request([*REQUEST[0..2], [":path", "/\r\nx: y"]]) }
    assert_equal "field value has a control character", error.message
    # None of them has reached the other end.
    assert_equal [[], []], exchange
    @server.respond(post, RESPONSE)
    assert_equal [RESPONSE], exchange[0].map(&:headers)
  end

  def test_a_request_and_its_response
    stream = @client.request(POST)
    @client.data(stream, "ques")
    @client.data(stream, "tion", end_stream: true)
    _, requests = exchange
    assert_equal Request.new(1, POST, false), requests[0]
    assert_equal "question", requests[1..-1].map(&:data).join
    assert_predicate requests.last, :end_stream
    @server.respond(1, RESPONSE)
    @server.data(1, "answer")
    @server.trailers(1, [%w[x-sum 1]])
    responses, = exchange
    assert_equal [Response.new(1, 200, RESPONSE, false), Data.new(1, "answer", false), Trailers.new(1, [%w[x-sum 1]])], responses
    assert_equal [0, 0], [@client.streams, @server.streams]
    assert_equal [Encoding::UTF_8], responses[0].headers.flatten.map(&:encoding).uniq
    assert_equal Encoding::BINARY, responses[1].data.encoding
  end

  def test_bytes_come_one_by_one
    @client.request([*REQUEST, %w[X-Mixed Value]], end_stream: true)
    _, requests = exchange(size: 1)
    assert_equal [Request.new(1, [*REQUEST, %w[x-mixed Value]], true)], requests
  end

  def test_many_streams_in_one_call
    100.times { @client.request(REQUEST, end_stream: true) }
    exchange
    more = Array.new(50) { @client.request(REQUEST.to_h, end_stream: true) }
    events = @server.receive(@client.take_output)
    assert_equal more, events.map(&:stream)
  end

  def test_large_content_goes_as_windows_allow
    content = Random.new(7).bytes(3_000_000)
    stream = @client.request(POST)
    @client.data(stream, content, end_stream: true)
    _, events = exchange
    assert_equal content, events.grep(Data).map(&:data).join
  end

  def test_room_in_a_queue
    stream = @client.request(POST)
    exchange
    assert_operator @client.capacity(stream), :>, 0
    @client.data(stream, "x" * 2_000_000)
    assert_equal 0, @client.capacity(stream)
    events, = exchange
    assert_includes events, Writable.new(stream)
  end

  def test_window_is_given_back_by_hand
    @server = Server.new(auto_release: false, initial_window_size: 1000)
    exchange
    stream = @client.request(POST)
    @client.data(stream, "x" * 1500, end_stream: true)
    _, events = exchange
    assert_equal 1000, events.grep(Data).sum { |event| event.data.bytesize }
    @server.release(1, 1000)
    _, events = exchange
    assert_equal 500, events.grep(Data).sum { |event| event.data.bytesize }
  end

  def test_streams_are_reset
    stream = @client.request(POST)
    exchange
    @client.reset(stream)
    _, events = exchange
    assert_equal [Reset.new(1, :cancel, nil)], events
    stream = @client.request(POST)
    exchange
    @server.reset(stream, 0x1234)
    events, = exchange
    assert_equal [Reset.new(stream, 0x1234, nil)], events
  end

  def test_informational_and_push
    @client = Client.new(enable_push: true)
    @client.request(REQUEST, end_stream: true)
    exchange
    @server.inform(1, [[":status", "103"], %w[link </style.css>]])
    promised = @server.promise(1, REQUEST)
    @server.respond(promised, RESPONSE, end_stream: true)
    @server.respond(1, RESPONSE, end_stream: true)
    events, = exchange
    assert_equal [Informational.new(1, 103, [[":status", "103"], %w[link </style.css>]]), Promise.new(1, 2, REQUEST),
                  Response.new(2, 200, RESPONSE, true), Response.new(1, 200, RESPONSE, true)], events
  end

  def test_extended_connect
    @server = Server.new(enable_connect_protocol: true)
    exchange
    assert_equal true, @client.peer_settings[:enable_connect_protocol]
    connect = [[":method", "CONNECT"], [":protocol", "websocket"], *REQUEST[1..-1]]
    stream = @client.request(connect)
    _, events = exchange
    assert_equal [Request.new(stream, connect, false)], events
  end

  def test_ping
    exchange
    @client.ping("12345678")
    events, = exchange
    assert_equal "12345678", events[0].data
    assert_kind_of Float, events[0].round_trip
    assert_raises(ArgumentError) { @client.ping("1234") }
  end

  def test_shutdown
    @client.request(REQUEST, end_stream: true)
    exchange
    @server.shutdown
    events, = exchange
    assert_kind_of GoAway, events[0]
    assert_predicate @client, :going_away?
    assert_raises(Error) { @client.request(REQUEST) }
    @server.respond(1, RESPONSE, end_stream: true)
    exchange
    assert_predicate @server, :closed?
    assert_predicate @client, :closed?
  end

  def test_abort
    exchange
    @server.abort(:enhance_your_calm, "calm down")
    events, = exchange
    assert_equal [:enhance_your_calm, "calm down"], [events[0].code, events[0].data]
    assert_predicate @server, :closed?
  end

  def test_a_peer_that_breaks_a_rule_is_told_of_and_raises_nothing
    exchange
    events = @server.receive([0, 4, 8, 0, 0, 0].pack("CnCCNN"))
    assert_equal [Failure], events.map(&:class)
    assert_equal :protocol_error, events[0].code
    assert_kind_of String, events[0].message
    assert_predicate @server, :closed?
    events, = exchange
    assert_equal :protocol_error, events[0].code
    assert_empty @server.receive("more")
    @server = Server.new
    assert_equal([:protocol_error], @server.receive("GET / HTTP/1.1\r\n\r\n".b).map(&:code))
  end

  def test_what_this_end_does_wrong_raises
    assert_raises(Error) { @client.data(1, "x") }
    assert_raises(Error) { @client.request([%w[a b]]) }
    stream = @client.request(REQUEST, end_stream: true)
    assert_raises(Error) { @client.data(stream, "x") }
    assert_raises(ArgumentError) { Client.new(no_such: 1) }
    assert_raises(ArgumentError) { Client.new(max_frame_size: 1) }
    assert_raises(ArgumentError) { @client.reset(stream, :no_such) }
    assert_raises(TypeError) { @client.receive(nil) }
    assert_raises(TypeError) { @client.request([[":method", 5]]) }
    assert_raises(Error) { Client.allocate.take_output }
    assert_raises(NoMethodError) { @client.dup }
  end

  def test_the_end_of_the_transport
    @client.request(REQUEST, end_stream: true)
    exchange
    @client.eof
    assert_predicate @client, :closed?
    assert_nil @client.timeout
  end

  # A byte may refer to 4 KiB of the dynamic table.
  def test_the_fields_that_one_call_decodes_are_bounded
    fields = [["x-long", "x" * 4000]] * 15
    encoder = Wireloom::HPACK::Encoder.new
    streams = Array.new(100) { |at| 2 * at + 1 }
    frames = streams.map do |stream|
      block = encoder.encode([*REQUEST, *fields])
      [0, block.bytesize, 1, 5, stream].pack("CnCCN") << block
    end
    chunk = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".b << frames.join
    assert_operator chunk.bytesize, :<, 50_000
    calls = [@server.receive(chunk)]
    calls << @server.receive("") while @server.input?
    assert_equal streams, calls.flatten.grep(Request).map(&:stream)
    calls.each do |events|
      assert_operator events.grep(Request).sum { |event| event.headers.flatten.sum(&:bytesize) }, :<, (1 << 20) + 50_000 + 61_000
    end
    assert_equal fields, calls.flatten.last.headers.last(15)
  end

  # The server handles no input while it has more than 1 MiB of output.
  def test_an_end_behind_input_that_waits
    streams = Array.new(25) { @client.request(POST) }
    exchange
    streams.each { |stream| @server.respond(stream, [*RESPONSE, ["x-long", "x" * 60_000]]) }
    late = @client.request(REQUEST, end_stream: true)
    assert_empty @server.receive(@client.take_output)
    assert_empty @server.eof
    assert_predicate @server, :input?
    @server.take_output
    events = @server.receive("")
    refute_predicate @server, :input?
    assert_equal [late, *streams.map { Reset }], events.map { |event| event.is_a?(Request) ? event.stream : event.class }
    @server.respond(late, RESPONSE, end_stream: true)
    assert_predicate @server, :output?
    @server.take_output
    assert_predicate @server, :closed?
  end

  def test_deadlines
    assert_empty @client.tick
    @client.take_output
    @client.tick
    assert_kind_of Float, @client.timeout
  end

  def test_priorities
    stream = @client.request(REQUEST, end_stream: true)
    exchange
    @client.prioritize(stream, urgency: 1, incremental: true)
    _, events = exchange
    assert_equal [Priority.new(stream, 1, true)], events
    assert_raises(ArgumentError) { @client.prioritize(stream, urgency: 8) }
  end

  def test_garbage_never_crashes
    random = Random.new(seed = Random.new_seed)
    @client.request(POST)
    valid = @client.take_output
    300.times do
      server = Server.new
      bytes = valid.dup
      3.times { bytes.setbyte(random.rand(bytes.bytesize), random.rand(256)) }
      events = server.receive(bytes) + server.receive(random.bytes(50))
      assert_kind_of Array, events, "seed #{seed}"
      server.take_output
    end
  end

  def test_in_ractors
    needs_sound_ractors
    ractor = Ractor.new do
      client = Wireloom::HTTP2::Client.new
      server = Wireloom::HTTP2::Server.new
      client.request([[":method", "GET"], [":scheme", "https"], [":authority", "a"], [":path", "/"]], end_stream: true)
      server.receive(client.take_output).map { |event| event.class.name }
    end
    assert_includes ractor.take, "Wireloom::HTTP2::Request"
  end
end
