# frozen_string_literal: true
# GC.stress: short

require_relative "../support/http_2"

# Programs and their tests override methods that frames go through: the native code must call the overrides.
class HTTP2MethodsTest < HTTP2TestCase
  def setup
    skip "an older original" if ORIGINAL && Gem::Version.new(HTTP2::VERSION) < Gem::Version.new("1.2.2")
  end

  # Gives an object a method of its own that keeps what it is called with.
  def keep(object, name)
    kept = []
    object.define_singleton_method(name) { |*args| (kept << args.first) && nil }
    kept
  end

  def test_send_takes_what_a_connection_answers
    client, = connected_client
    kept = keep(client, :send)
    client << settings_frame([[:settings_header_table_size, 256]])
    client << frame(:ping, stream: 0, payload: "12345678")
    client.ping("87654321")
    client.window_update(20)
    client.settings(settings_max_concurrent_streams: 10)
    assert_equal [[:settings, 1, []], [:ping, 1, "12345678"], [:ping, nil, "87654321"]],
                 kept.first(3).map { |sent| sent.values_at(:type, :flags, :payload) }
    assert_equal [[:window_update, 20, 0], [:settings, nil, 0]],
                 kept.last(2).map { |sent| sent.values_at(:type, :increment, :stream) }
  end

  def test_encode_takes_every_frame
    client, sent = connected_client
    kept = keep(client, :encode)
    stream = client.new_stream
    stream.headers([*REQUEST, ["x-long", "\0" * 20_000]], end_stream: true)
    assert_raises(HTTP2::Error::ProtocolError) { client << frame(:data, stream: 31, payload: "") }
    assert_empty sent
    assert_equal [[:headers, 1], [:continuation, 4], [:goaway, 0]],
                 kept.map { |encoded| [encoded[:type], encoded[:flags] || 0] }
    assert_equal [stream.id, :protocol_error], kept.last.values_at(:last_stream, :error)
  end

  def test_encode_is_there_to_be_called
    client, sent = connected_client
    client.__send__(:encode, { type: :ping, stream: 0, payload: "12345678" })
    assert_equal [[:ping, "12345678"]], parsed_as(sent, :type, :payload)
  end

  def test_a_stream_that_takes_its_frames_itself
    server, = connected_server
    taken = nil
    server.on(:stream) { |stream| taken = keep(stream, :<<) }
    server << headers_frame([*REQUEST, %w[x-y z]])
    assert_equal [[:headers, [*REQUEST, %w[x-y z]]]], taken.map { |received| received.values_at(:type, :payload) }
  end

  def test_send_takes_what_a_stream_says
    client, = connected_client
    stream = client.new_stream
    kept = keep(stream, :send)
    stream.headers({ "a" => "b" }, end_stream: true)
    stream.data("x" * 20_000)
    stream.window_update(9)
    stream.cancel
    assert_equal [[:headers, 5, { "a" => "b" }], [:data, 0, "x" * 16_384], [:data, 1, "x" * 3616],
                  [:window_update, nil, nil], [:rst_stream, nil, nil]],
                 kept.map { |sent| sent.values_at(:type, :flags, :payload) }
  end

  def test_the_preface_is_asked_for
    client = HTTP2::Client.new
    asked = 0
    client.define_singleton_method(:send_connection_preface) { asked += 1 }
    client.upgrade
    assert_equal 1, asked
  end

  def test_a_block_stays_interrupted
    [[connected_client.first, 2], [connected_server.first, 1]].each do |connection, id|
      connection << frame(:headers, stream: id, payload: block(RESPONSE))
      [frame(:ping, stream: 0, payload: "12345678"), frame(:data, stream: id, payload: ""), settings_frame].each do |other|
        assert_raises(HTTP2::Error::ProtocolError) { connection << other }
      end
    end
  end

  def test_a_client_cannot_push
    server, = connected_server
    server << headers_frame(REQUEST)
    server << frame(:push_promise, stream: 1, promise_stream: 2, payload: block(REQUEST))
    return if ORIGINAL && Gem::Version.new(HTTP2::VERSION) < Gem::Version.new("1.3")

    assert_raises(HTTP2::Error::ProtocolError) { server << frame(:continuation, [:end_headers], stream: 1, payload: "") }
  end

  def test_a_connection_that_was_closed_grows_old_by_the_clock_of_ruby
    client, = connected_client
    client.goaway
    client << settings_frame
    clock = Process.method(:clock_gettime)
    verbose = $VERBOSE
    $VERBOSE = nil
    Process.define_singleton_method(:clock_gettime) { |*args| clock.call(*args) + 16 }
    assert_raises(HTTP2::Error::ProtocolError) { client << settings_frame }
  ensure
    Process.define_singleton_method(:clock_gettime, clock) if clock
    $VERBOSE = verbose
  end

  def test_a_buffer_with_an_empty_frame_is_not_empty
    buffer = HTTP2::FrameBuffer.new
    assert_empty buffer
    buffer << { type: :data, flags: 1, stream: 1, payload: +"" }
    refute_empty buffer
    assert_equal [0, 1], [buffer.bytesize, buffer.retrieve(0)[:flags]]
    assert_empty buffer
  end

  def test_what_hears_of_goaway_and_resets
    client, = connected_client
    seen = []
    client.on(:frame_sent) { |sent| (seen << sent.dup) && nil }
    client.new_stream.close(:cancel)
    client.goaway
    assert_equal [{ type: :rst_stream, error: :cancel, stream: 1 },
                  { type: :goaway, stream: 0, last_stream: 1, error: :no_error, payload: nil }], seen
  end
end
