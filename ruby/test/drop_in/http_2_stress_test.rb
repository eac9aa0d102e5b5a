# frozen_string_literal: true
# GC.stress: short

require_relative "../support/http_2"

# Every way that objects take through the native part, a few times: for GC.stress and compaction.
class HTTP2StressTest < HTTP2TestCase
  def setup
    gap_of_the_original
  end

  def test_requests_with_bodies_and_pushes
    client, server = pair(server_settings: { settings_header_table_size: 100 })
    seen = []
    requests = []
    client.on(:frame_sent) { |sent| (seen << sent[:type]) && nil }
    client.on(:promise) { |push| push.on(:data) { |data| (seen << data) && nil } }
    server.on(:stream) do |stream|
      requests << stream
      stream.on(:headers) { |headers| (seen << headers.size) && nil }
      stream.on(:data) { |data| (seen << data.bytesize) && nil }
      stream.on(:half_close) do
        stream.promise(REQUEST) do |push|
          push.headers(RESPONSE)
          push.data("pushed")
        end
        stream.headers([*RESPONSE, ["x-id", stream.id.to_s * 20]])
        stream.data("answer")
      end
    end
    2.times do |n|
      stream = client.new_stream
      stream.on(:headers) { |headers| (seen << headers.last) && nil }
      stream.once(:close) { |error| seen << error }
      stream.headers([*REQUEST, ["X-N", n.to_s * 30]])
      stream.data("x" * 20_000)
      assert_equal :closed, stream.state
    end
    assert_equal 2, seen.count(["x-id", "1" * 20]) + seen.count(["x-id", "3" * 20])
    assert_equal [2, 2, 2], [seen.count("pushed"), seen.count(16_384), seen.count(nil)]
    assert_equal 2, requests.size
  end

  def test_frames_as_hashes
    [
      { type: :data, flags: 0, stream: 1, payload: "x" * 30, padding: 5 }, { type: :ping, flags: 0, stream: 0, payload: "12345678" },
      { type: :settings, flags: 0, stream: 0, payload: [[:settings_max_frame_size, 20_000]] },
      { type: :goaway, flags: 0, stream: 0, last_stream: 3, error: :cancel, payload: "why" },
      { type: :altsvc, flags: 0, stream: 0, max_age: 1, port: 2, proto: "h2", host: "h", origin: "o" },
      { type: :origin, flags: 0, stream: 0, payload: %w[a b] }
    ].each do |frame|
      read = framer.parse(framer.generate(frame))
      assert_equal [frame[:payload]], [read[:payload]]
    end
  end

  def test_tables_that_evict
    encoder = Wireloom::HPACK::Encoder.new(table_size: 200)
    decoder = Wireloom::HPACK::Decoder.new(table_size: 200)
    4.times do |n|
      headers = [[":path", "/#{n}"], ["x-one", "one" * 10], ["x-#{n}", n.to_s * 40]]
      assert_equal headers, decoder.decode(encoder.encode(headers))
    end
    assert_equal encoder.to_a, decoder.to_a
  end

  def test_errors
    server, = connected_server
    server.on(:stream) { |stream| stream.on(:headers) { raise ArgumentError, "mine" } }
    error = assert_raises(HTTP2::Error::ProtocolError) { server << headers_frame(REQUEST) }
    assert_equal ["mine", "mine"], [error.message, error.cause.message]
  end

  def test_data_that_waits
    client, = connected_client
    client << settings_frame([[:settings_initial_window_size, 5]])
    stream = client.new_stream
    stream.headers(REQUEST)
    stream.data("waits for long")
    3.times { client << frame(:window_update, stream: 1, increment: 3) }
    assert_equal 0, stream.buffered_amount
    stream.close
  end

  # Ruby checks whether an old object refers to a young one without a write barrier, and aborts if it does.
  def test_old_streams_hold_what_is_new
    client, server = pair
    answers = []
    server.on(:stream) { |stream| (answers << stream) && nil }
    streams = Array.new(3) { client.new_stream }
    made = HTTP2::Stream.new(connection: client, id: 999, parent: streams.first)
    steps = [
      -> { streams.each { |stream| [:data, :"at-#{stream.id}-#{object_id}"].each { |event| stream.on(event) { "#{stream}" } } } },
      -> { streams.each { |stream| stream.headers([*REQUEST, %w[trailer x-sum]]) } },
      -> { streams.each { |stream| stream.data("x" * 80_000, end_stream: false) } },
      -> { streams.map(&:dup).each { |copy| copy.once(:close) { nil } } },
      -> { made.__send__(:initialize, connection: client, id: 1001, parent: streams.last) },
      -> { answers.each { |stream| stream.headers(RESPONSE) || stream.once(:close) { nil } || stream.send_buffer } },
      -> { client.define_singleton_method(:send) { |frame| super(frame) } },
      -> { client.new_stream.headers(REQUEST) }
    ]
    steps.each do |step|
      4.times { GC.start }
      step.call
      GC.verify_internal_consistency
    end
    assert_equal [3, 3], [answers.first(3).size, streams.count { |stream| stream.state == :open }]
  end
end
