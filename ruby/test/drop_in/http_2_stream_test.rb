# frozen_string_literal: true

require_relative "../support/http_2"

class HTTP2StreamTest < HTTP2TestCase
  EVENTS = %i[active headers data half_close close].freeze

  # The original rescues StandardError there.
  def test_threads_that_end_while_headers_are_made
    client, sent = connected_client
    thrown = Class.new do
      include Enumerable

      def each
        throw :out, :thrown
      end
      alias_method :to_a, :each
    end
    before = sent.size
    assert_equal(:thrown, catch(:out) { client.new_stream.headers(thrown.new) })
    assert_equal before, sent.size
    assert_equal :connected, client.state
  end

  # To look for content that waits calls nothing, during which an interrupt of this thread would be lost.
  def test_content_that_waits_for_the_first_time
    skip "an old original" if OLD
    client, = connected_client
    called = []
    HTTP2::FrameBuffer.define_singleton_method(:to_s) { super().tap { |name| called << name } }
    stream = client.new_stream
    stream.headers(REQUEST, end_stream: false)
    stream.data("x" * 70_000)
    assert_empty called
    assert_equal 70_000 - 65_535, stream.buffered_amount
  ensure
    HTTP2::FrameBuffer.singleton_class.remove_method(:to_s) if called
  end

  def test_a_request_and_its_response_in_the_order_of_their_events
    client, server = pair
    order = []
    server.on(:stream) do |stream|
      order << [:stream, stream.id, stream.state]
      EVENTS.each { |event| stream.on(event) { |*args| (order << [:server, event, *args]) && nil } }
      stream.on(:half_close) do
        stream.headers(RESPONSE)
        stream.data("answer")
      end
    end
    stream = client.new_stream
    EVENTS.each { |event| stream.on(event) { |*args| (order << [:client, event, *args]) && nil } }
    stream.headers(REQUEST)
    stream.data("question")
    expected = [
      [:client, :active], [:stream, 1, :idle], [:server, :active], [:server, :headers, REQUEST],
      [:server, :data, "question"], [:server, :half_close], [:client, :headers, RESPONSE], [:client, :data, "answer"]
    ]
    # Where the end of this side's part comes depends on who answers within it.
    assert_equal expected, order.reject { |event| event[1] == :close || event == %i[client half_close] }
    assert_equal [[:server, :close, nil]], (order.select { |event| event[0, 2] == %i[server close] })
    assert_equal [0, 0], [client.active_stream_count, server.active_stream_count]
  end

  def test_half_close_and_close_follow_the_events_of_their_frame
    client, = connected_client
    stream = client.new_stream
    order = []
    EVENTS.each { |event| stream.on(event) { |*args| (order << [event, stream.state, *args]) && nil } }
    stream.headers(REQUEST, end_stream: true)
    client << headers_frame(RESPONSE)
    client << frame(:data, [:end_stream], stream: 1, payload: "x")
    assert_equal [
      [:active, :idle], [:half_close, :half_closed_local], [:headers, :half_closed_local, RESPONSE],
      [:data, :closing, "x"], [:close, :closed, nil]
    ], order
    assert_equal :remote_closed, stream.closed
  end

  def test_headers_come_as_pairs_of_utf8_strings
    server, = connected_server
    seen = nil
    server.on(:stream) { |stream| stream.on(:headers) { |headers| seen = headers } }
    server << headers_frame([*REQUEST, ["X-Mixed", "Välue"], ["x-empty", ""]])
    assert_equal [*REQUEST, ["x-mixed", "Välue"], ["x-empty", ""]], seen
    assert_equal [Encoding::UTF_8], seen.flatten.map(&:encoding).uniq
  end

  def test_headers_may_be_a_hash
    client, server = pair
    seen = nil
    server.on(:stream) { |stream| stream.on(:headers) { |headers| seen = headers } }
    client.new_stream.headers(REQUEST.to_h, end_stream: true)
    assert_equal REQUEST, seen
  end

  def test_trailers
    client, = connected_client
    stream = client.new_stream
    stream.headers(REQUEST, end_stream: true)
    seen = []
    stream.on(:headers) { |headers| seen << headers }
    client << headers_frame([*RESPONSE, %w[trailer x-sum]])
    client << frame(:data, stream: 1, payload: "x")
    trailers = [%w[x-sum 1]]
    client << headers_frame(trailers, names: %i[end_headers end_stream])
    assert_equal trailers, seen.last
    assert_equal :closed, stream.state
  end

  def test_trailers_that_are_none
    skip "does not look" if OLD
    client, = connected_client
    client.new_stream.headers(REQUEST, end_stream: true)
    client << headers_frame(RESPONSE)
    client << frame(:data, stream: 1, payload: "x")
    error = assert_raises(HTTP2::Error::ProtocolError) { client << headers_frame([%w[x-sum 1]]) }
    assert_equal "trailer headers frame must close the stream", error.message
  end

  # A block of 128 KiB has room for as many names.
  def test_names_of_trailers_are_not_compared_each_with_each
    skip "compares each with each" if ORIGINAL
    compared = 0
    name = Class.new(String) { %i[== eql?].each { |method| define_method(method) { |other| (compared += 1) && super(other) } } }
    client, = connected_client
    stream = client.new_stream
    stream.headers(REQUEST, end_stream: true)
    announced = Array.new(100) { |index| name.new("x-#{index}") }
    stream << { type: :headers, flags: flags(:end_headers), stream: 1, payload: RESPONSE, trailer: announced }
    trailers = Array.new(100) { |index| ["y-#{index}", "1"] }
    error = assert_raises(HTTP2::Error::ProtocolError) do
      stream << { type: :headers, flags: flags(:end_headers, :end_stream), stream: 1, payload: trailers }
    end
    assert_equal "didn't receive all expected trailer headers", error.message
    assert_operator compared, :<=, 200
  end

  def test_more_content_than_announced
    skip "does not look" if OLD
    client, = connected_client
    client.new_stream.headers(REQUEST, end_stream: true)
    client << headers_frame([*RESPONSE, %w[content-length 3]])
    client << frame(:data, stream: 1, payload: "abc")
    error = assert_raises(HTTP2::Error::ProtocolError) { client << frame(:data, stream: 1, payload: "d") }
    assert_equal "received more data than what was defined in content-length", error.message
  end

  def test_answers_to_head_end_the_stream
    skip "leaves that to programs" if OLD
    server, sent = connected_server
    server.on(:stream) { |stream| stream.on(:half_close) { stream.headers(RESPONSE) } }
    server << headers_frame([[":method", "HEAD"], *REQUEST[1..-1]], names: %i[end_headers end_stream])
    assert_equal [:headers, flags(:end_headers, :end_stream)], parsed(sent.last).values_at(:type, :flags)
  end

  def test_data_is_split_at_the_size_of_a_frame
    client, sent = connected_client
    stream = client.new_stream
    stream.headers(REQUEST)
    sent.clear
    payload = ("x" * 40_000).freeze
    stream.data(payload)
    frames = sent.map { |bytes| parsed(bytes) }
    assert_equal [16_384, 16_384, 7232], (frames.map { |data| data[:payload].bytesize })
    assert_equal [flags, flags, flags(:end_stream)], (frames.map { |data| data[:flags] })
    assert_equal payload, frames.map { |data| data[:payload].to_s }.join
    assert_equal 65_535 - 40_000, stream.remote_window
    assert_equal 65_535 - 40_000, client.remote_window
    assert_equal :half_closed_local, stream.state
  end

  def test_data_beyond_the_window_of_its_stream_waits
    skip "the window of the connection follows SETTINGS there" if OLD
    client, sent = connected_client
    client << settings_frame([[:settings_initial_window_size, 1000]])
    stream = client.new_stream
    stream.headers(REQUEST)
    sent.clear
    stream.data("a" * 900, end_stream: false)
    stream.data("b" * 200)
    assert_equal([900, 100], sent.map { |bytes| parsed(bytes)[:payload].bytesize })
    assert_equal 100, stream.buffered_amount
    assert_equal :open, stream.state
    client << frame(:window_update, stream: 1, increment: 500)
    assert_equal 0, stream.buffered_amount
    assert_equal 400, stream.remote_window
    assert_equal flags(:end_stream), parsed(sent.last)[:flags]
    assert_equal :half_closed_local, stream.state
  end

  def test_data_beyond_the_window_of_the_connection_waits
    skip "the window of the connection follows SETTINGS there" if OLD
    client, sent = connected_client
    client << settings_frame([[:settings_initial_window_size, 100_000]])
    stream = client.new_stream
    stream.headers(REQUEST)
    sent.clear
    stream.data("a" * 70_000)
    assert_equal(65_535, sent.sum { |bytes| parsed(bytes)[:payload].bytesize })
    assert_equal 70_000 - 65_535, client.buffered_amount
    assert_equal 0, stream.buffered_amount
    client << frame(:window_update, stream: 0, increment: 10_000)
    assert_equal(70_000, sent.sum { |bytes| parsed(bytes)[:payload].bytesize })
    assert_equal 0, client.buffered_amount
    assert_predicate client.send_buffer, :empty?
  end

  def test_a_window_that_became_negative
    skip "the window of the connection follows SETTINGS there" if OLD
    client, sent = connected_client
    stream = client.new_stream
    stream.headers(REQUEST)
    stream.data("x" * 2048, end_stream: false)
    client << settings_frame([[:settings_initial_window_size, 1024]])
    assert_equal(-1024, stream.remote_window)
    sent.clear
    stream.data("y")
    assert_empty sent
    client << frame(:window_update, stream: 1, increment: 1025)
    assert_equal "y", parsed(sent.last)[:payload].to_s
  end

  def test_windows_are_replenished_when_half_is_gone
    skip "updates after every frame" if OLD
    client, sent = connected_client
    stream = client.new_stream
    stream.headers(REQUEST)
    client << headers_frame(RESPONSE)
    sent.clear
    client << frame(:data, stream: 1, payload: "x" * 16_384)
    assert_empty sent
    assert_equal 65_535 - 16_384, stream.local_window
    client << frame(:data, stream: 1, payload: "x" * 16_384)
    assert_equal [[:window_update, 1, 32_768], [:window_update, 0, 32_768]], parsed_as(sent, :type, :stream, :increment)
    assert_equal 65_535, stream.local_window
    assert_equal 65_535, client.window
  end

  def test_windows_that_are_overrun
    skip "does not look" if OLD
    client, = connected_client
    client.new_stream.headers(REQUEST)
    assert_raises(HTTP2::Error::FlowControlError) { client << frame(:window_update, stream: 1, increment: 0x7fffffff) }
    client, = connected_client
    assert_raises(HTTP2::Error::FlowControlError) { client << frame(:window_update, stream: 0, increment: 0x7fffffff) }
    client, = connected_client
    assert_raises(HTTP2::Error::ProtocolError) { client << frame(:window_update, stream: 0, increment: 0) }
  end

  def test_streams_are_reset
    { cancel: :cancel, refuse: :refused_stream, close: :stream_closed }.each do |method, error|
      client, sent = connected_client
      stream = client.new_stream
      stream.headers(REQUEST)
      reasons = []
      stream.on(:close) { |reason| reasons << reason }
      stream.public_send(method)
      assert_equal [:rst_stream, 1, error], parsed(sent.last).values_at(:type, :stream, :error)
      assert_equal [error], reasons
      assert_equal %i[closed local_rst], [stream.state, stream.closed]
      assert_equal 0, client.active_stream_count
    end
  end

  def test_a_reset_of_the_peer_says_why
    client, = connected_client
    stream = client.new_stream
    stream.headers(REQUEST)
    reasons = []
    stream.on(:close) { |reason| reasons << reason }
    client << frame(:rst_stream, stream: 1, error: :refused_stream)
    assert_equal [:refused_stream], reasons
    assert_equal :remote_rst, stream.closed
    assert_raises(HTTP2::Error::StreamClosed) { stream.data("late") }
  end

  def test_frames_that_a_state_does_not_allow
    client, = connected_client
    stream = client.new_stream
    assert_raises(HTTP2::Error::InternalError) { stream.dup.send({ type: :data, flags: flags, payload: "x" }) }
    stream.headers(REQUEST, end_stream: true)
    assert_raises(HTTP2::Error::InternalError) { stream.dup.headers(REQUEST) }
    closed = client.new_stream
    closed.headers(REQUEST, end_stream: true)
    closed.receive({ type: :headers, flags: flags(:end_headers, :end_stream), stream: closed.id, payload: RESPONSE })
    assert_equal :closed, closed.state
    assert_raises(HTTP2::Error::StreamClosed) { closed.data("late") }
    assert_raises(HTTP2::Error::StreamClosed) { closed.receive({ type: :data, flags: flags, payload: "late" }) }
  end

  def final_state(*steps)
    stream = HTTP2::Client.new.new_stream
    steps.each { |how, step| stream.public_send(how, step.dup) }
    stream.state
  end

  def test_states_by_frames_alone
    headers = { type: :headers, flags: flags(:end_headers), stream: 1, payload: REQUEST }
    push = { type: :push_promise, flags: flags(:end_headers), promise_stream: 2, stream: 1, payload: REQUEST }
    ended = headers.merge(flags: flags(:end_headers, :end_stream))
    data = { type: :data, flags: flags(:end_stream), stream: 1, payload: "x" }
    reset = { type: :rst_stream, stream: 1, error: :cancel }
    {
      idle: [[]], open: [[[:send, headers]], [[:receive, headers]]],
      reserved_local: [[[:send, push]]], reserved_remote: [[[:receive, push]]],
      half_closed_remote: [[[:send, push], [:send, headers]], [[:receive, ended]]],
      half_closed_local: [[[:receive, push], [:receive, headers]], [[:send, ended]]],
      closed: [
        [[:send, ended], [:receive, headers], [:receive, data]], [[:send, headers], [:receive, reset]],
        [[:receive, push], [:send, reset]], [[:receive, ended], [:send, headers], [:send, data]]
      ]
    }.each do |state, paths|
      paths.each { |steps| assert_equal state, final_state(*steps), steps.inspect }
    end
  end

  def test_frames_of_a_stream_are_told
    client, = connected_client
    stream = client.new_stream
    types = []
    stream.on(:frame) { |frame| (types << frame[:type]) && nil }
    stream.headers(REQUEST)
    stream.data("x")
    assert_equal %i[headers data], types
  end

  def test_methods_of_a_stream_come_first
    server, = connected_server
    taken = []
    server.on(:stream) { |stream| stream.define_singleton_method(:<<) { |frame| taken << frame } }
    server << headers_frame(REQUEST)
    assert_equal([[:headers, REQUEST]], taken.map { |frame| frame.values_at(:type, :payload) })
    client, = connected_client
    stream = client.new_stream
    sent = []
    stream.define_singleton_method(:send) { |frame| sent << frame }
    stream.data("x" * 16_385)
    assert_equal([16_384, 1], sent.map { |frame| frame[:payload].bytesize })
  end

  def test_push
    client, server = pair
    order = []
    requested = nil
    server.on(:stream) { |stream| requested = stream }
    client.on(:promise) do |push|
      order << [:promise, push.id, push.parent.id]
      %i[promise_headers headers data].each { |event| push.on(event) { |arg| (order << [event, arg]) && nil } }
      push.on(:close) { order << :close }
    end
    client.new_stream.headers(REQUEST, end_stream: true)
    requested.promise(REQUEST) do |push|
      assert_equal [:reserved_local, 2, 1], [push.state, push.id, push.parent.id]
      push.headers(RESPONSE)
      push.data("pushed")
    end
    assert_equal [[:promise, 2, 1], [:promise_headers, REQUEST], [:headers, RESPONSE], [:data, "pushed"], :close], order
    assert_raises(ArgumentError) { requested.promise(REQUEST) }
  end

  def test_a_push_on_a_stream_that_this_side_reset_is_refused
    client, sent = connected_client
    stream = client.new_stream
    stream.headers(REQUEST)
    stream.close
    client << frame(:push_promise, [:end_headers], stream: 1, promise_stream: 2, payload: block(REQUEST))
    assert_equal [:rst_stream, 2, :refused_stream], parsed(sent.last).values_at(:type, :stream, :error)
  end

  def test_priorities
    skip "names them otherwise" if OLD
    client, sent = connected_client
    stream = client.new_stream(weight: 3, dependency: 7)
    assert_equal [3, 7], [stream.weight, stream.dependency]
    stream.headers(REQUEST)
    stream.reprioritize(weight: 30, dependency: 5, exclusive: true)
    assert_equal [:priority, 30, 5, true], parsed(sent.last).values_at(:type, :weight, :dependency, :exclusive)
    seen = []
    stream.on(:priority) { |priority| (seen << priority) && nil }
    client << frame(:priority, stream: 1, weight: 12, dependency: 9, exclusive: false)
    assert_equal [{ weight: 12, dependency: 9, exclusive: false }], seen
    idle = nil
    client.on(:stream) do |made|
      idle = made
      idle.on(:priority) { |priority| (seen << priority) && nil }
    end
    client << frame(:priority, stream: 9, weight: 20, dependency: 0, exclusive: false)
    # http-2 1.3 makes no stream of it, and judges dependencies no more.
    return if ORIGINAL && idle.nil?

    assert_equal [9, :idle, 20, 2], [idle.id, idle.state, idle.weight, seen.size]
    assert_raises(HTTP2::Error::InternalError) { HTTP2::Server.new.new_stream.reprioritize(weight: 1) }
    return if ORIGINAL && Gem::Version.new(HTTP2::VERSION) >= Gem::Version.new("1.3") # which lets it pass

    # Others of late stumble over themselves there.
    broken = [HTTP2::Error::ProtocolError, *(NoMethodError if ORIGINAL)]
    assert_raises(*broken) { client.new_stream(dependency: client.new_stream.id + 2) }
  end

  def test_copies_go_their_own_way
    client, = connected_client
    stream = client.new_stream
    stream.headers(REQUEST)
    other = stream.dup
    other.receive({ type: :window_update, stream: 1, increment: 10 })
    assert_equal 65_545, other.remote_window
    assert_equal 65_535, stream.remote_window unless OLD
  end
end
