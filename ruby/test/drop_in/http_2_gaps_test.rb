# frozen_string_literal: true

require_relative "../support/http_2"

# Behaviour that http-2 1.2.1 lacks and the replacement has.
class HTTP2GapsTest < HTTP2TestCase
  def setup
    gap_of_the_original
  end

  CONNECT = [[":method", "CONNECT"], [":authority", "example.org:443"]].freeze
  EXTENDED = [[":method", "CONNECT"], [":protocol", "websocket"], [":scheme", "https"], [":path", "/chat"],
              [":authority", "example.org"]].freeze

  def accepted(headers, **settings)
    server, sent = connected_server(**settings)
    seen = nil
    server.on(:stream) { |stream| stream.on(:headers) { |list| seen = list } }
    server << headers_frame(headers)
    seen
  rescue HTTP2::Error::ProtocolError => e
    assert_equal :protocol_error, parsed(sent.last)[:error]
    e.message
  end

  def test_connect
    assert_equal CONNECT, accepted(CONNECT)
    assert_equal "invalid pseudo-headers", accepted(CONNECT + [[":path", "/"]])
    assert_equal "invalid pseudo-headers", accepted(CONNECT[0, 1])
  end

  def test_extended_connect_once_offered
    assert_equal EXTENDED, accepted(EXTENDED, settings_enable_connect_protocol: 1)
    assert_equal "invalid pseudo-headers", accepted(EXTENDED)
    _, server = pair(server_settings: { settings_enable_connect_protocol: 1 })
    client, = pair(server_settings: { settings_enable_connect_protocol: 1 })
    assert_equal 1, client.remote_settings[:settings_enable_connect_protocol]
    assert_equal 1, server.local_settings[:settings_enable_connect_protocol]
  end

  def test_requests_that_name_their_host_alone
    headers = [[":method", "GET"], [":scheme", "https"], [":path", "/"], %w[host example.org]]
    assert_equal headers, accepted(headers)
    assert_equal "invalid pseudo-headers", accepted(headers[0, 3])
    assert_equal "invalid pseudo-headers", accepted(REQUEST + [[":status", "200"]])
    assert_equal "invalid pseudo-headers", accepted(REQUEST + [[":method", "GET"]])
  end

  # DATA that waits for the connection's window goes with its stream, if that is reset by either end.
  def test_data_of_reset_streams_is_dropped
    server, sent = connected_server
    server << settings_frame([[:settings_initial_window_size, (2**31) - 1]])
    streams = []
    server.on(:stream) do |stream|
      streams << stream
      stream.on(:half_close) do
        stream.headers(RESPONSE)
        stream.data(stream.id.to_s * 60_000, end_stream: stream.id == 9)
      end
    end
    [1, 3, 5, 7, 9].each { |id| server << headers_frame(REQUEST, stream: id, names: %i[end_headers end_stream]) }
    assert_operator server.buffered_amount, :>=, 4 * 60_000 - 5535
    [1, 3, 7].each { |id| server << frame(:rst_stream, stream: id, error: :cancel) }
    streams[2].close(:cancel)
    assert_equal 60_000, server.buffered_amount
    sent.clear
    server << frame(:window_update, stream: 0, increment: 1_000_000)
    data = sent.map { |bytes| parsed(bytes) }.select { |frame| frame[:type] == :data }
    assert_equal [9], data.map { |frame| frame[:stream] }.uniq
    assert_equal 60_000, data.sum { |frame| frame[:payload].bytesize }
    assert_equal 0, server.buffered_amount
  end

  # The frames of one response: of DATA the length, of HEADERS their kind.
  def left(sent)
    sent.map { |bytes| parsed(bytes) }.filter_map do |frame|
      case frame[:type]
      when :data then frame[:payload].bytesize
      when :headers then frame[:flags].anybits?(1) ? :trailers : :headers
      end
    end
  end

  # In the buffer of the stream, and in that of the connection.
  def test_trailers_leave_behind_data_that_waits_for_a_window
    [65_535, 1 << 20].each do |window|
      server, sent = connected_server
      server << settings_frame([[:settings_initial_window_size, window]])
      streams = []
      server.on(:stream) { |stream| (streams << stream) && nil }
      server << headers_frame(REQUEST, names: %i[end_headers end_stream])
      sent.clear
      trailers = [["grpc-status", +"0"]]
      streams[0].headers(RESPONSE)
      streams[0].data("x" * 100_000, end_stream: false)
      streams[0].headers(trailers, end_stream: true)
      trailers[0][1] << "1"
      trailers.clear
      refute_includes left(sent), :trailers
      assert_equal 34_465, server.buffered_amount + streams[0].buffered_amount
      # Another stream does not wait for it.
      server << headers_frame(REQUEST, stream: 3, names: %i[end_headers end_stream])
      streams[1].headers(RESPONSE, end_stream: true)
      assert_includes left(sent), :trailers
      sent.clear
      server << frame(:window_update, stream: 1, increment: 100_000)
      server << frame(:window_update, stream: 0, increment: 100_000)
      assert_equal [34_465, :trailers], left(sent).partition { |found| found.is_a?(Integer) }.then { |data, rest| [data.sum, *rest] }
      assert_equal [:closed, 0], [streams[0].state, server.buffered_amount]
    end
  end

  # The program's faults raise where they are made, and not from the call that reads a WINDOW_UPDATE.
  def test_frames_that_cannot_leave
    server, sent = connected_server
    stream = nil
    server.on(:stream) { |opened| (stream = opened) && nil }
    server << headers_frame(REQUEST, names: %i[end_headers end_stream])
    stream.headers(RESPONSE)
    stream.data("x" * 100_000, end_stream: false)
    [[["x-end", nil]], [["x-end"]], ["x-end"]].each do |trailers|
      assert_raises(TypeError) { stream.headers(trailers, end_stream: true) }
    end
    stream.data("y", end_stream: true)
    assert_raises(HTTP2::Error::StreamClosed) { stream.headers([%w[x-end yes]], end_stream: true) }
    assert_raises(HTTP2::Error::StreamClosed) { stream.data("z") }
    sent.clear
    [1, 0].each { |id| server << frame(:window_update, stream: id, increment: 100_000) }
    assert_equal 34_466, left(sent).sum
    assert_equal :closed, stream.state
  end

  # RFC 9113 §6.9.2: the window of a stream may become negative, and then the peer waits for WINDOW_UPDATE, before it sends the DATA that would
  # have been answered by one.
  def test_a_smaller_window_stalls_no_stream
    server, sent = connected_server
    [1, 3, 5].each { |id| server << headers_frame(REQUEST, stream: id) }
    server << frame(:data, stream: 1, payload: "x" * 16_000)
    server << frame(:data, [:end_stream], stream: 5, payload: "x" * 16_000)
    server.settings(settings_initial_window_size: 10)
    sent.clear
    server << settings_frame([], [:ack])
    assert_equal [[:window_update, 1, 16_000]], parsed_as(sent, :type, :stream, :increment)
    sent.clear
    [1, 3].each { |id| server << frame(:data, stream: id, payload: "x" * 10) }
    assert_equal [1, 3], parsed_as(sent, :stream, :increment).filter_map { |id, more| id if id.positive? && more == 10 }
    # With the end that was lowered nothing remains of the larger window.
    assert_raises(HTTP2::Error::FlowControlError) { server << frame(:data, stream: 3, payload: "x" * 11) }
  end

  # RFC 9113 §6.8: a server that stops lets responses under way come to their end.
  def test_responses_under_way_after_goaway_of_this_end
    server, sent = connected_server
    server << settings_frame([[:settings_initial_window_size, 65_535]])
    stream = nil
    server.on(:stream) { |opened| (stream = opened) && nil }
    server << headers_frame(REQUEST, names: %i[end_headers end_stream])
    stream.headers(RESPONSE)
    stream.data("x" * 200_000)
    server.goaway
    assert_equal [:closed, true], [server.state, server.closed?]
    sent.clear
    server << settings_frame([[:settings_initial_window_size, 1 << 20]])
    server << frame(:window_update, stream: 0, increment: 200_000)
    assert_equal 134_465, left(sent).sum
    assert_equal [:closed, 0], [stream.state, server.buffered_amount]
    # It is over now.
    sent.clear
    server << frame(:window_update, stream: 0, increment: 1)
    server << headers_frame(REQUEST, stream: 3)
    assert_empty sent
    assert_raises(HTTP2::Error::ConnectionClosed) { server.new_stream }
  end

  # A server with a large window for streams, of which stream 1 has ended but waits for the window of the connection, as stream 3 does behind it.
  def ended_but_waiting
    server, sent = connected_server
    server << settings_frame([[:settings_initial_window_size, 1 << 20]])
    streams = []
    server.on(:stream) { |stream| (streams << stream) && nil }
    encoder = HTTP2::Header::Compressor.new
    [1, 3].each do |id|
      server << frame(:headers, %i[end_headers end_stream], stream: id, payload: encoder.encode(REQUEST))
      streams.last.headers(RESPONSE)
      streams.last.data(id == 1 ? "x" * 100_000 : "")
    end
    assert_equal [%i[closed closed], 34_465], [streams.map(&:state), server.buffered_amount]
    sent.clear
    [server, streams, sent]
  end

  # RFC 9113 §5.4.2, also of a stream whose end waits too.
  def test_nothing_of_a_stream_follows_its_reset
    [:peer, :program].each do |who|
      server, streams, sent = ended_but_waiting
      who == :peer ? server << frame(:rst_stream, stream: 1, error: :cancel) : streams[0].close(:cancel)
      assert_equal 0, server.buffered_amount
      # The frame queued behind it needs no window.
      assert_equal [:data, 3, 1], parsed(sent.last).values_at(:type, :stream, :flags)
      server << frame(:window_update, stream: 0, increment: 100_000)
      assert_equal [0], left(sent)
    end
  end

  def test_data_under_way_when_the_peer_goes_away
    server, _, sent = ended_but_waiting
    server << frame(:goaway, stream: 0, last_stream: 0, error: :no_error)
    assert_equal :closed, server.state
    server << frame(:window_update, stream: 0, increment: 100_000)
    assert_equal 34_465, left(sent).sum
  end

  def test_errors_end_a_connection_that_goes_away
    [->(server) { server << frame(:goaway, stream: 0, last_stream: 0, error: :internal_error) },
     ->(server) { server.goaway(:internal_error) && server.goaway }].each do |close|
      server, _, sent = ended_but_waiting
      server.goaway
      close.call(server)
      server << frame(:window_update, stream: 0, increment: 100_000)
      assert_empty left(sent)
    end
  end

  # RFC 9113 §6.8: a client sends requests until it has GOAWAY. They are discarded, content and all; the others come to their end.
  def test_requests_that_cross_goaway
    server, sent = connected_server
    stream = nil
    server.on(:stream) { |opened| (stream = opened) && nil }
    encoder = HTTP2::Header::Compressor.new
    server << frame(:headers, %i[end_headers end_stream], stream: 1, payload: encoder.encode(REQUEST))
    stream.headers(RESPONSE)
    stream.data("x" * 100_000)
    server.goaway
    server << frame(:headers, [:end_headers], stream: 3, payload: encoder.encode(REQUEST))
    4.times { server << frame(:data, stream: 3, payload: "x" * 16_000) }
    server << frame(:window_update, stream: 3, increment: 5)
    server << frame(:rst_stream, stream: 3, error: :cancel)
    # Discarded DATA is credited to the connection's window.
    assert_equal [[:window_update, 0]], parsed_as(sent.last(1), :type, :stream)
    sent.clear
    [0, 1].each { |id| server << frame(:window_update, stream: id, increment: 100_000) }
    assert_equal [34_465, 1], [left(sent).sum, stream.id]
    assert_predicate stream, :closed?
    # Also once nothing is under way.
    server << frame(:headers, [:end_headers], stream: 5, payload: encoder.encode(REQUEST))
    server << frame(:data, [:end_stream], stream: 5, payload: "x")
    assert_equal 0, server.active_stream_count
  end

  # Clients of RFC 7540 say the priority of a request before it.
  def test_requests_behind_priority_that_cross_goaway
    server, sent = connected_server
    stream = nil
    server.on(:stream) { |opened| stream ||= opened }
    encoder = HTTP2::Header::Compressor.new
    priority = ->(id) { server << frame(:priority, stream: id, dependency: 0, weight: 16, exclusive: false) }
    server << frame(:headers, %i[end_headers end_stream], stream: 1, payload: encoder.encode(REQUEST))
    stream.headers(RESPONSE)
    stream.data("x" * 100_000)
    [3, 7].each(&priority)
    server.goaway
    server << frame(:headers, [:end_headers], stream: 3, payload: encoder.encode(REQUEST))
    # Also where it is said again.
    priority.call(3)
    server << frame(:data, [:end_stream], stream: 3, payload: "x")
    sent.clear
    [0, 1].each { |id| server << frame(:window_update, stream: id, increment: 100_000) }
    assert_equal 34_465, left(sent).sum
    # A stream that has a priority alone keeps no connection.
    assert_over(server)
  end

  # A connection of which nothing is under way gives no window back, and takes nothing once the peer had the time to notice.
  def test_content_behind_goaway_has_an_end
    server, sent = connected_server
    server.goaway
    sent.clear
    server << headers_frame(REQUEST)
    10.times { server << frame(:data, stream: 1, payload: "x" * 16_000) }
    assert_empty sent
    assert_over(server) { server << frame(:data, stream: 1, payload: "x") }
    assert_over(server) { server << headers_frame(REQUEST) }
    # The peer has its GOAWAY.
    assert_empty sent
  end

  def assert_over(server, &late)
    late ||= -> { server << frame(:window_update, stream: 0, increment: 1) }
    clock = Process.method(:clock_gettime)
    verbose, $VERBOSE = $VERBOSE, nil
    Process.define_singleton_method(:clock_gettime) { |*args| clock.call(*args) + 16 }
    assert_raises(HTTP2::Error::ProtocolError, &late)
  ensure
    Process.define_singleton_method(:clock_gettime, clock)
    $VERBOSE = verbose
  end

  # A window that allows nothing yet is not given back when nothing has used it.
  def test_requests_without_content_while_there_is_no_window
    server, sent = connected_server(settings_initial_window_size: 0)
    server << headers_frame(REQUEST)
    server << frame(:data, [:end_stream], stream: 1, payload: "")
    assert_empty parsed_as(sent, :type)
  end

  # A client chooses how much it sends at once.
  def test_idle_connections_hold_no_buffer
    require "objspace"
    server, = connected_server
    server << headers_frame(REQUEST)
    idle = ObjectSpace.memsize_of(server)
    12.times { server << frame(:data, stream: 1, payload: "x" * 16_000) * 4 }
    assert_operator ObjectSpace.memsize_of(server), :<=, idle + 4096
    server << (frame(:data, stream: 1, payload: "x" * 16_000) * 4)[0..-15_000]
    assert_operator ObjectSpace.memsize_of(server), :<=, idle + 16_384
  end

  def test_header_tables_of_any_size
    [0, 64, 1000, 65_536].product([0, 64, 65_536]).each do |ours, theirs|
      client, server = pair(client_settings: { settings_header_table_size: ours },
                            server_settings: { settings_header_table_size: theirs })
      seen = []
      server.on(:stream) do |stream|
        stream.on(:headers) { |headers| (seen << headers) && nil }
        stream.on(:half_close) { stream.headers([*RESPONSE, ["x-id", stream.id.to_s * 30]], end_stream: true) }
      end
      5.times do |n|
        stream = client.new_stream
        stream.on(:headers) { |headers| (seen << headers) && nil }
        stream.headers([*REQUEST, ["x-n", n.to_s * 40], %w[x-same same]], end_stream: true)
      end
      assert_equal 10, seen.size
      assert_equal [*REQUEST, ["x-n", "4" * 40], %w[x-same same]], seen[-2]
      assert_equal [*RESPONSE, ["x-id", "9" * 30]], seen[-1]
    end
  end

  def test_header_tables_that_shrink_and_grow_on_the_way
    client, server = pair
    count = 0
    server.on(:stream) { |stream| stream.on(:headers) { |headers| count += 1 if headers.last == %w[x-same same] } }
    [4096, 0, 128, 0, 4096, 8192].each do |size|
      server.settings({ settings_header_table_size: size })
      3.times { client.new_stream.headers([*REQUEST, ["x-long", "v" * 50], %w[x-same same]]) }
    end
    assert_equal 18, count
  end

  def test_large_windows_do_not_dry_up
    payload = "x" * 1_000_000
    [100, 65_535, 131_071, 200_000, 5_000_000].each do |window|
      client, server = pair(server_settings: { settings_initial_window_size: window })
      received = 0
      server.on(:stream) { |stream| stream.on(:data) { |data| received += data.bytesize } }
      stream = client.new_stream
      stream.headers(REQUEST)
      stream.data(payload)
      assert_equal payload.bytesize, received, window
      assert_equal 0, client.buffered_amount + stream.buffered_amount
    end
  end

  def test_windows_that_grow_on_the_way
    client, server = pair
    received = 0
    server.on(:stream) { |stream| stream.on(:data) { |data| received += data.bytesize } }
    server.settings({ settings_initial_window_size: 1_000_000 })
    stream = client.new_stream
    stream.headers(REQUEST)
    stream.data("x" * 3_000_000)
    assert_equal 3_000_000, received
  end

  def test_blocks_longer_than_a_frame
    client, server = pair
    seen = nil
    server.on(:stream) { |stream| stream.on(:headers) { |headers| seen = headers } }
    headers = [*REQUEST, ["x-long", "\u00e9" * 20_000], ["x-longer", "q" * 60_000]]
    client.new_stream.headers(headers)
    assert_equal headers, seen
  end

  def test_blocks_without_end
    server, sent = connected_server
    server << frame(:headers, stream: 1, payload: "")
    error = assert_raises(HTTP2::Error::ProtocolError) { 100.times { server << frame(:continuation, stream: 1, payload: "") } }
    assert_equal "too many continuations received", error.message
    assert_equal :goaway, parsed(sent.last)[:type]
    server, = connected_server
    server << frame(:headers, stream: 1, payload: "")
    assert_raises(HTTP2::Error::ProtocolError) { 9.times { server << frame(:continuation, stream: 1, payload: "x" * 16_384) } }
  end

  def flood(limit, sent, server)
    error = assert_raises(HTTP2::Error::ProtocolError) { limit.times { |n| yield n } }
    refute_equal "protocol error", error.message
    assert_equal [:goaway, :enhance_your_calm], parsed(sent.last).values_at(:type, :error)
    assert_equal :closed, server.state
  end

  def test_floods_of_resets
    server, sent = connected_server
    compressor = HTTP2::Header::Compressor.new
    flood(3000, sent, server) do |n|
      id = (2 * n) + 1
      server << frame(:headers, [:end_headers], stream: id, payload: compressor.encode(REQUEST))
      server << frame(:rst_stream, stream: id, error: :cancel)
    end
  end

  def test_floods_of_pings_and_settings_and_empty_data
    server, sent = connected_server
    flood(3000, sent, server) { server << frame(:ping, stream: 0, payload: "12345678") }
    server, sent = connected_server
    flood(500, sent, server) { server << settings_frame }
    server, sent = connected_server
    server << headers_frame(REQUEST)
    flood(20_000, sent, server) { server << frame(:data, stream: 1, payload: "") }
    server, sent = connected_server
    flood(5000, sent, server) { |n| server << frame(:priority, stream: n + 1, weight: 1, dependency: 0, exclusive: false) }
  end

  def test_what_is_under_way_when_this_side_resets
    client, sent = connected_client
    stream = client.new_stream
    stream.headers(REQUEST)
    stream.cancel
    sent.clear
    client << headers_frame(RESPONSE)
    5.times { client << frame(:data, stream: 1, payload: "x" * 16_000) }
    client << frame(:window_update, stream: 1, increment: 5)
    client << frame(:rst_stream, stream: 1, error: :cancel)
    assert_equal :connected, client.state
    assert_equal [[:window_update, 0]], parsed_as(sent, :type, :stream).uniq
  end

  def test_streams_under_way_when_the_peer_goes_away
    client, = connected_client
    stream = client.new_stream
    stream.headers(REQUEST, end_stream: true)
    seen = []
    stream.on(:headers) { |headers| (seen << headers) && nil }
    client << frame(:goaway, stream: 0, last_stream: 1, error: :no_error)
    assert_equal :closing, client.state
    assert_predicate client, :closing?
    assert_raises(HTTP2::Error::ConnectionClosed) { client.new_stream }
    client << headers_frame(RESPONSE, names: %i[end_headers end_stream])
    assert_equal [RESPONSE], seen
    assert_predicate client, :closed?
  end

  def test_pushes_that_are_switched_off
    client, sent = connected_client(settings_enable_push: 0)
    client.new_stream.headers(REQUEST)
    push = frame(:push_promise, [:end_headers], stream: 1, promise_stream: 2, payload: block(REQUEST))
    error = assert_raises(HTTP2::Error::ProtocolError) { client << push }
    assert_equal "push promises are disabled", error.message
    assert_equal [:goaway, :protocol_error], parsed(sent.last).values_at(:type, :error)
  end

  def test_pushes_beyond_the_limit_are_refused
    client, sent = connected_client(settings_max_concurrent_streams: 2)
    client.new_stream.headers(REQUEST)
    pushes = []
    client.on(:promise) { |push| (pushes << push) && nil }
    encoder = HTTP2::Header::Compressor.new
    promise = ->(id) { frame(:push_promise, [:end_headers], stream: 1, promise_stream: id, payload: encoder.encode(REQUEST)) }
    [2, 4, 6].each { |id| client << promise.call(id) }
    assert_equal [2, 4], pushes.map(&:id)
    assert_equal [:rst_stream, 6, :refused_stream], parsed(sent.last).values_at(:type, :stream, :error)
    # The response is under way.
    opened = []
    client.on(:stream) { |stream| (opened << stream.id) && nil }
    client << frame(:headers, [:end_headers], stream: 6, payload: encoder.encode(RESPONSE))
    client << frame(:data, [:end_stream], stream: 6, payload: "pushed")
    assert_empty opened
    pushes.first.close
    client << promise.call(8)
    assert_equal [2, 4, 8], pushes.map(&:id)
  end

  # Each side counts its own streams (RFC 9113 §5.1.1).
  def test_requests_after_pushes_with_larger_identifiers
    server, sent = connected_server
    requests = []
    server.on(:stream) { |stream| (requests << stream) && nil }
    encoder = HTTP2::Header::Compressor.new
    server << frame(:headers, [:end_headers], stream: 1, payload: encoder.encode(REQUEST))
    3.times { requests[0].promise(REQUEST) { |push| push.headers(RESPONSE, end_stream: true) } }
    assert_equal [2, 4, 6], parsed_as(sent, :type, :promise_stream).filter_map { |type, id| id if type == :push_promise }
    [3, 5].each { |id| server << frame(:headers, [:end_headers], stream: id, payload: encoder.encode(REQUEST)) }
    assert_equal [1, 3, 5], requests.map(&:id)
    # One that was not opened is idle all the same.
    error = assert_raises(HTTP2::Error::ProtocolError) { server << frame(:window_update, stream: 7, increment: 5) }
    assert_equal "sent window update on idle stream", error.message
  end

  def prioritized(*ids)
    server, sent = connected_server
    ids.each { |id| server << frame(:priority, stream: id, weight: 1, dependency: 0, exclusive: false) }
    [server, sent]
  end

  def test_goaway_names_streams_of_upgrades_and_those_that_priority_made
    server, _, sent = upgraded_server
    server.goaway
    assert_equal [:goaway, 1], parsed(sent.last).values_at(:type, :last_stream)

    server, sent = prioritized(3, 5)
    server << headers_frame(REQUEST, stream: 3)
    server.goaway
    assert_equal [:goaway, 3], parsed(sent.last).values_at(:type, :last_stream)
    # The other one is not opened any more.
    server << headers_frame(REQUEST, stream: 5)
    assert_equal 1, server.active_stream_count
  end

  def test_the_stream_of_an_upgrade_is_not_opened_again
    server, stream, = upgraded_server
    stream.headers(RESPONSE, end_stream: true)
    error = assert_raises(HTTP2::Error::ProtocolError) { server << headers_frame(REQUEST) }
    assert_equal "Stream ID smaller than previous", error.message
  end

  # As requests on other streams are.
  def test_requests_on_streams_that_priority_made_are_checked
    server, = prioritized(3)
    error = assert_raises(HTTP2::Error::ProtocolError) { server << headers_frame(REQUEST[0, 2], stream: 3) }
    assert_equal "invalid pseudo-headers", error.message

    server, = prioritized(3)
    server << headers_frame(REQUEST, stream: 5)
    error = assert_raises(HTTP2::Error::ProtocolError) { server << headers_frame(REQUEST, stream: 3) }
    assert_equal "Stream ID smaller than previous", error.message
  end

  # The later one closed what was idle before it, which its GOAWAY names all the same.
  def test_streams_that_priority_made_stay_closed_after_goaway
    server, = prioritized(3)
    server << headers_frame(REQUEST, stream: 5)
    server.goaway
    server << headers_frame(REQUEST, stream: 3)
    assert_equal 1, server.active_stream_count
  end

  def test_lists_of_headers_no_larger_than_asked_for
    size = REQUEST.sum { |name, value| name.bytesize + value.bytesize + 32 }
    [size, size + 1].each do |most|
      server, = connected_server(settings_max_header_list_size: most)
      server << headers_frame(REQUEST)
      assert_equal 1, server.active_stream_count
    end
    server, sent = connected_server(settings_max_header_list_size: size - 1)
    error = assert_raises(HTTP2::Error::ProtocolError) { server << headers_frame(REQUEST) }
    assert_equal "header list exceeds configured maximum", error.message
    assert_equal :goaway, parsed(sent.last)[:type]

    decoder = HTTP2::Header::Decompressor.new
    decoder.max_header_list_size = 40
    assert_raises(HTTP2::Error::ProtocolError) { decoder.decode(block(REQUEST)) }
  end

  def test_headers_in_any_order_when_told_so
    decoder = HTTP2::Header::Decompressor.new
    list = [%w[connection close], %w[te gzip], %w[:status 200]]
    bytes = list.sum("".b) { |pair| HTTP2::Header::Compressor.new(index: :never).encode([pair]) }
    assert_raises(HTTP2::Error::ProtocolError) { decoder.decode(bytes.dup) }
    decoder.accept_invalid_headers!
    assert_equal list, decoder.decode(bytes.dup)
  end

  def test_streams_do_not_depend_on_themselves
    [frame(:priority, stream: 1, weight: 1, dependency: 1, exclusive: false),
     frame(:headers, [:end_headers], stream: 1, weight: 1, dependency: 1, exclusive: false, payload: block(REQUEST))]
      .each do |wrong|
        server, sent = connected_server
        assert_raises(HTTP2::Error::ProtocolError) { server << wrong }
        assert_equal :goaway, parsed(sent.last)[:type]
      end
  end

  def test_nothing_behind_an_upgrade
    client = HTTP2::Client.new
    assert_equal :half_closed_local, client.upgrade.state
    assert_nil client << nil
  end

  def test_input_that_is_frozen
    server = HTTP2::Server.new
    server << HTTP2::CONNECTION_PREFACE_MAGIC
    server << settings_frame.freeze
    assert_equal :connected, server.state
  end

  def test_the_payload_of_a_program_stays_as_it_is
    client, sent = connected_client
    client << settings_frame([[:settings_initial_window_size, 3]])
    stream = client.new_stream
    stream.headers(REQUEST)
    payload = +"text"
    stream.data(payload)
    assert_equal ["text", Encoding::UTF_8], [payload, payload.encoding]
    payload.replace("other")
    client << frame(:window_update, stream: 1, increment: 10)
    assert_equal %w[tex t], parsed_as(sent, :type, :payload).filter_map { |type, part| part if type == :data }
  end

  def test_integers_that_overflow
    client, = connected_client
    client.new_stream.headers(REQUEST)
    assert_raises(HTTP2::Error::CompressionError) do
      client << frame(:headers, [:end_headers], stream: 1, payload: "\xff#{"\xff" * 1000}\x00".b)
    end
  end

  def test_many_streams_leave_nothing_behind
    client, server = pair
    server.on(:stream) { |stream| stream.on(:half_close) { stream.headers(RESPONSE, end_stream: true) } }
    objects = Array.new(2) do
      2000.times { client.new_stream.headers(REQUEST, end_stream: true) }
      GC.start
      [HTTP2::Stream, HTTP2::FrameBuffer].sum { |klass| ObjectSpace.each_object(klass).count }
    end
    assert_operator objects[1], :<=, objects[0] + 5
    assert_operator objects[1], :<, 100
  end

  def test_memory_is_flat
    needs_the_usual_allocator
    status = "/proc/self/status"
    skip "needs #{status}" unless File.readable?(status)
    client, server = pair
    server.on(:stream) { |stream| stream.on(:half_close) { stream.headers([*RESPONSE, ["x-n", stream.id.to_s]], end_stream: true) } }
    kilobytes = Array.new(3) do
      30_000.times { |n| client.new_stream.headers([*REQUEST, ["x-n", n.to_s]], end_stream: true) }
      GC.start
      File.read(status)[/VmRSS:\s+(\d+)/, 1].to_i
    end
    assert_operator kilobytes[2] - kilobytes[1], :<, 2048
  end

  def test_the_original_finds_its_place_taken
    assert_equal false, require("http/2")
    assert_equal false, require("http/2/framer")
    assert_equal "1.2.3", HTTP2::VERSION
    assert_nil HTTP2::Framer.instance_method(:parse).source_location
  end

  def test_switched_off_by_the_environment
    script = 'require "wireloom/drop_in/http_2"; puts HTTP2::Framer.instance_method(:parse).source_location.inspect'
    command = [RbConfig.ruby, "-W0", "-I#{File.expand_path("../../lib", __dir__)}", "-e", script]
    said = IO.popen({ "WIRELOOM_DROP_IN_HTTP_2" => "0" }, command, err: %i[child out], &:read)
    # Where the original is not installed, it is that which is missing.
    assert_match(%r{http/2}, said)
    refute_equal "nil", said.strip
  end

  def test_one_thread_each
    threads = Array.new(4) do
      Thread.new do
        client, server = pair
        server.on(:stream) { |stream| stream.on(:half_close) { stream.headers(RESPONSE, end_stream: true) } }
        200.times.count do
          done = false
          stream = client.new_stream
          stream.on(:close) { done = true }
          stream.headers(REQUEST, end_stream: true)
          done
        end
      end
    end
    assert_equal [200] * 4, threads.map(&:value)
  end

  def test_one_ractor_each
    needs_sound_ractors
    ractors = Array.new(2) do
      Ractor.new(REQUEST.map { |pair| pair.map(&:dup) }) do |request|
        decoder = Wireloom::HPACK::Decoder.new
        encoder = Wireloom::HPACK::Encoder.new
        50.times { decoder.decode(encoder.encode(request)) }
        decoder.decode(encoder.encode(request))
      end
    end
    ractors.each { |ractor| assert_equal REQUEST, ractor.take }
  end

  # As the original does, which waits for the rest of the frame that it takes the preface for.
  def test_a_server_that_goes_away_before_the_preface
    server = HTTP2::Server.new
    server.goaway
    2.times { server << "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0".b }
    assert_equal :closed, server.state
  end

  def test_a_frame_that_is_too_long_is_refused_at_once
    gap_of_the_original
    server, = connected_server
    assert_raises(HTTP2::Error::ProtocolError) { server << [1, 0, 0, 0, 1].pack("CnCCN") }
  end
end
