# frozen_string_literal: true

require_relative "../support/http_2"

class HTTP2ConnectionTest < HTTP2TestCase
  def test_a_client_begins_with_its_magic_and_settings
    client = HTTP2::Client.new(settings_max_concurrent_streams: 200)
    sent = []
    client.on(:frame) { |bytes| sent << bytes }
    assert_equal :waiting_connection_preface, client.state
    client.ping("12345678")
    assert_equal :connected, client.state
    assert_equal HTTP2::CONNECTION_PREFACE_MAGIC, sent[0]
    assert_equal [[:settings_max_concurrent_streams, 200]], parsed(sent[1])[:payload]
    assert_equal :ping, parsed(sent[2])[:type]
    assert_equal 3, sent.size
  end

  def test_frames_are_binary_strings_of_their_own
    client, sent = connected_client
    client.ping("12345678")
    client.new_stream.headers(REQUEST)
    sent.each do |bytes|
      assert_equal Encoding::BINARY, bytes.encoding
      refute_predicate bytes, :frozen?
      assert_equal bytes.bytesize, 9 + parsed(bytes)[:length]
    end
  end

  def test_a_server_answers_the_magic_with_settings
    server = HTTP2::Server.new(settings_initial_window_size: 1024)
    sent = []
    server.on(:frame) { |bytes| sent << bytes }
    assert_equal :waiting_magic, server.state
    HTTP2::CONNECTION_PREFACE_MAGIC.each_char { |char| server << char.dup }
    assert_equal :waiting_connection_preface, server.state
    assert_includes parsed(sent[0])[:payload], [:settings_initial_window_size, 1024]
    server << settings_frame
    assert_equal :connected, server.state
  end

  def test_a_server_refuses_what_is_no_client
    error = assert_raises(HTTP2::Error::HandshakeError) { HTTP2::Server.new << +"GET / HTTP/1.1\r\nHost: x\r\n\r\n" }
    assert_kind_of HTTP2::Error::Error, error
    assert_raises(HTTP2::Error::HandshakeError) { HTTP2::Server.new << +"GET" }
  end

  def test_settings_of_the_peer_hold_at_once_and_are_acknowledged
    client, sent = connected_client
    client << settings_frame([[:settings_max_concurrent_streams, 10], [:settings_initial_window_size, 1000]])
    assert_equal 10, client.remote_settings[:settings_max_concurrent_streams]
    assert_equal 1000, client.new_stream.remote_window
    assert_equal [[:settings, flags(:ack), []]], parsed_as(sent, :type, :flags, :payload)
    assert_equal 65_535, client.remote_window unless OLD
  end

  def test_settings_of_this_side_hold_when_acknowledged
    client, = connected_client
    acknowledged = []
    client.on(:settings_ack) { |frame, _| acknowledged << frame[:type] }
    client.settings({ settings_max_frame_size: 32_768 })
    assert_equal 16_384, client.local_settings[:settings_max_frame_size]
    client << settings_frame([], [:ack])
    assert_equal 32_768, client.local_settings[:settings_max_frame_size] unless OLD
    assert_equal [:settings], acknowledged
  end

  def test_settings_that_nobody_may_send_are_refused
    [
      [[:settings_max_frame_size, 1], HTTP2::Error::ProtocolError],
      [[:settings_max_frame_size, 1 << 24], HTTP2::Error::ProtocolError],
      [[:settings_initial_window_size, 1 << 31], OLD ? HTTP2::Error::ProtocolError : HTTP2::Error::FlowControlError],
      [[:settings_enable_push, 1], HTTP2::Error::ProtocolError]
    ].each do |setting, error|
      client, = connected_client
      assert_raises(error, setting.inspect) { client << settings_frame([setting]) }
      assert_equal :closed, client.state
    end
  end

  def test_ping_is_answered_and_answers_are_told
    client, sent = connected_client
    client << frame(:ping, stream: 0, payload: "abcdefgh")
    assert_equal [[:ping, flags(:ack), "abcdefgh"]], parsed_as(sent, :type, :flags, :payload)
    answers = []
    client.ping("12345678") { |payload| answers << payload }
    2.times { client << frame(:ping, [:ack], stream: 0, payload: "12345678") }
    assert_equal ["12345678"], answers
  end

  def test_goaway_of_the_peer
    client, = connected_client
    seen = nil
    client.on(:goaway) { |*args| seen = args }
    client << frame(:goaway, stream: 0, last_stream: 17, error: :enhance_your_calm, payload: "calm")
    assert_equal [17, :enhance_your_calm, "calm"], seen
    assert_equal :closed, client.state
    assert_raises(HTTP2::Error::ConnectionClosed) { client.new_stream }
  end

  def test_goaway_of_this_side
    client, sent = connected_client
    client.new_stream.headers(REQUEST)
    client.goaway(:no_error, "bye")
    assert_equal [:goaway, 1, :no_error, "bye"], parsed(sent.last).values_at(:type, :last_stream, :error, :payload)
    assert_equal :closed, client.state
    assert_raises(HTTP2::Error::ConnectionClosed) { client.new_stream }
  end

  def test_a_protocol_error_says_goaway_and_raises
    client, sent = connected_client
    error = assert_raises(HTTP2::Error::ProtocolError) { client << frame(:data, stream: 31, payload: "x") }
    assert_instance_of HTTP2::Error::ProtocolError, error
    assert_equal [:goaway, :protocol_error], parsed(sent.last).values_at(:type, :error)
    assert_equal :closed, client.state
  end

  def test_what_a_listener_raises_becomes_a_protocol_error
    _, server = pair
    server.on(:stream) { |stream| stream.on(:headers) { raise ArgumentError, "mine" } }
    error = assert_raises(HTTP2::Error::ProtocolError) { server << headers_frame(REQUEST) }
    assert_equal :closed, server.state
    return if OLD

    assert_equal "mine", error.message
    assert_instance_of ArgumentError, error.cause
    assert_match(/http_2_connection_test/, error.backtrace.first)
  end

  def test_errors_of_the_library_pass_a_listener_unchanged
    _, server = pair
    server.on(:stream) { |stream| stream.on(:headers) { raise HTTP2::Error::StreamClosed, "mine" } }
    error = assert_raises(HTTP2::Error::StreamClosed) { server << headers_frame(REQUEST) }
    assert_equal "mine", error.message
    assert_equal :connected, server.state
  end

  def test_what_follows_a_listener_that_raised_waits_for_the_next_call
    server, = connected_server
    seen = []
    server.on(:stream) do |stream|
      stream.on(:headers) do
        seen << stream.id
        raise HTTP2::Error::StreamClosed if stream.id == 1
      end
    end
    bytes = headers_frame(REQUEST, stream: 1) + headers_frame(REQUEST, stream: 3)
    assert_raises(HTTP2::Error::StreamClosed) { server << bytes }
    assert_equal [1], seen
    server << "".b
    assert_equal [1, 3], seen
  end

  def test_limits_of_streams
    client, = connected_client
    client << settings_frame([[:settings_max_concurrent_streams, 2]])
    2.times { client.new_stream.headers(REQUEST) }
    error = assert_raises(HTTP2::Error::StreamLimitExceeded) { client.new_stream }
    assert_equal "HTTP2::Error::StreamLimitExceeded", error.message
    assert_equal 2, client.active_stream_count
  end

  def test_streams_are_numbered_by_their_side
    client, = connected_client
    server = HTTP2::Server.new
    assert_equal [1, 3, 5], (Array.new(3) { client.new_stream.id })
    assert_equal [2, 4], (Array.new(2) { server.new_stream.id })
  end

  def test_listeners_that_answer_delete_go
    client, = connected_client
    calls = []
    client.on(:mine) { |*args| (calls << [:on, *args]) && nil }
    client.once(:mine) { |*args| calls << [:once, *args] }
    client.on(:mine) { |*args| (calls << [:gone, *args]) && :delete }
    client.emit(:mine, 1)
    client.emit(:mine, 2)
    assert_equal [[:on, 1], [:once, 1], [:gone, 1], [:on, 2]], calls
    assert_raises(ArgumentError) { client.on(:mine) }
  end

  def test_listeners_come_and_go_while_they_are_called
    client, = connected_client
    calls = []
    client.on(:mine) do
      calls << 1
      client.on(:mine) { (calls << 2) && :delete }
      :delete
    end
    client.on(:mine) { (calls << 3) && nil }
    client.emit(:mine)
    assert_equal [1, 3, 2], calls
    client.emit(:mine)
    assert_equal [1, 3, 2, 3], calls
  end

  def test_emit_hands_blocks_on
    client, = connected_client
    client.on(:mine) { |&block| block.call(7) && nil }
    got = nil
    client.emit(:mine) { |number| got = number }
    assert_equal 7, got
  end

  def test_mixing_the_emitter_in
    worker = Class.new { include HTTP2::Emitter }.new
    worker.instance_variable_set(:@listeners, Hash.new { |all, event| all[event] = [] })
    calls = []
    worker.on(:work) { |arg| (calls << arg) && nil }
    worker.once(:work) { |arg| calls << arg }
    worker.emit(:work, 1)
    worker.emit(:work, 2)
    assert_equal [1, 1, 2], calls
  end

  def test_frames_are_told_as_hashes
    client, server = pair
    sent = []
    received = []
    client.on(:frame_sent) { |frame| (sent << frame[:type]) && nil }
    server.on(:frame_received) { |frame| (received << frame.values_at(:type, :stream)) && nil }
    stream = client.new_stream
    stream.headers(REQUEST)
    stream.data("x")
    assert_equal %i[headers data], sent
    assert_equal [[:headers, 1], [:data, 1]], received
  end

  def test_send_of_a_client_takes_a_hash
    client, sent = connected_client
    client.send({ type: :ping, stream: 0, payload: "12345678" })
    client.send({ type: :window_update, stream: 0, increment: 5 })
    assert_equal %i[ping window_update], parsed_as(sent, :type).flatten
    assert_raises(NoMethodError) { HTTP2::Server.new.send({ type: :ping, stream: 0, payload: "12345678" }) }
  end

  def test_methods_of_one_object_come_first
    client, = connected_client
    taken = []
    client.define_singleton_method(:send) { |frame| taken << frame }
    client.ping("12345678")
    client << frame(:ping, stream: 0, payload: "abcdefgh")
    client.new_stream.headers(REQUEST)
    assert_equal [[:ping, "12345678"], [:ping, "abcdefgh"], [:headers, REQUEST]],
                 (taken.map { |frame| frame.values_at(:type, :payload) })
  end

  def test_methods_of_a_subclass_come_first
    klass = Class.new(HTTP2::Client) do
      attr_reader :taken

      def send(frame)
        (@taken ||= []) << frame[:type]
        super
      end
    end
    client = klass.new
    bytes = []
    client.on(:frame) { |frame| bytes << frame }
    client.ping("12345678")
    client.new_stream.headers(REQUEST)
    assert_includes client.taken, :ping
    assert_includes client.taken, :headers
    assert_equal HTTP2::CONNECTION_PREFACE_MAGIC, bytes.first
  end

  def test_long_blocks_go_on_in_continuation
    client, sent = connected_client
    headers = [*REQUEST, ["custom", "q" * 44_000]]
    client.new_stream.headers(headers, end_stream: true)
    assert_equal [[:headers, flags(:end_stream)], [:continuation, flags], [:continuation, flags(:end_headers)]],
                 parsed_as(sent, :type, :flags)
    whole = parsed_as(sent, :payload).flatten.map(&:to_s).join
    assert_equal headers, HTTP2::Header::Decompressor.new.decode(buffer(whole))
  end

  def test_blocks_come_in_parts
    server, = connected_server
    seen = nil
    server.on(:stream) { |stream| stream.on(:headers) { |headers| seen = headers } }
    whole = block(REQUEST)
    server << frame(:headers, stream: 1, payload: whole[0, 5])
    server << frame(:continuation, stream: 1, payload: whole[5, 4])
    assert_nil seen
    server << frame(:continuation, [:end_headers], stream: 1, payload: whole[9..-1])
    assert_equal REQUEST, seen
  end

  def test_nothing_comes_between_the_parts_of_a_block
    [frame(:ping, stream: 0, payload: "12345678"), headers_frame(REQUEST, stream: 3),
     frame(:continuation, [:end_headers], stream: 3, payload: "x")].each do |between|
      server, = connected_server
      server << frame(:headers, stream: 1, payload: block(REQUEST)[0, 5])
      assert_raises(HTTP2::Error::ProtocolError) { server << between.dup }
    end
  end

  def test_bytes_come_one_by_one
    sent = "".b
    client = HTTP2::Client.new
    client.on(:frame) { |bytes| sent << bytes }
    stream = client.new_stream
    stream.headers(REQUEST)
    stream.data("body")
    server = HTTP2::Server.new
    seen = []
    server.on(:stream) do |incoming|
      incoming.on(:headers) { |headers| seen << headers }
      incoming.on(:data) { |data| seen << data }
      incoming.on(:half_close) { seen << :half_close }
    end
    sent.each_byte { |byte| server << byte.chr }
    assert_equal [REQUEST, "body", :half_close], seen
  end

  def test_headers_that_cannot_be_encoded
    client, = connected_client
    assert_raises(HTTP2::Error::CompressionError) { client.new_stream.headers([["name", 1.5]]) }
  end

  def test_header_values_that_are_no_strings
    skip "takes strings alone before 1.3" if BEFORE_1_3
    server = HTTP2::Server.new
    seen = nil
    server.on(:stream) { |stream| stream.on(:headers) { |headers| seen = headers } }
    client = HTTP2::Client.new
    client.on(:frame) { |bytes| server << bytes }
    client.new_stream.headers(REQUEST.to_a + [["x-number", 7], ["x-symbol", :name]])
    assert_equal [%w[x-number 7], %w[x-symbol name]], seen.last(2)
  end

  def test_nil_is_no_input
    skip "answers with a protocol error before 1.3" if BEFORE_1_3
    assert_raises(TypeError, NoMethodError) { HTTP2::Server.new << nil }
  end

  def test_headers_that_cannot_be_decoded
    client, sent = connected_client
    client.new_stream.headers(REQUEST)
    bad = frame(:headers, [:end_headers], stream: 1, payload: "\xbe".b)
    assert_raises(HTTP2::Error::CompressionError) { client << bad }
    assert_equal [:goaway, :compression_error], parsed(sent.last).values_at(:type, :error)
  end

  def test_alternative_services_and_origins
    client, = connected_client
    services = []
    client.on(:altsvc) { |frame| services << frame[:host] }
    service = { stream: 0, max_age: 60, port: 443, proto: +"h2", host: +"alt.example.org" }
    client << frame(:altsvc, **service, origin: +"example.org")
    client << frame(:altsvc, **service) unless OLD
    assert_equal ["alt.example.org"], services
    return if OLD

    origins = []
    client.on(:origin) { |origin| origins << origin }
    client << frame(:origin, stream: 0, payload: %w[https://a.example https://b.example])
    assert_equal %w[https://a.example https://b.example], origins
  end

  def test_origins_of_a_server
    skip "knows no origins" if OLD
    server, sent = connected_server
    server.origin_set = ["https://a.example"]
    server.settings({ settings_max_concurrent_streams: 7 })
    server << settings_frame([], [:ack])
    assert_equal [:origin, ["https://a.example"]], parsed(sent.last).values_at(:type, :payload)
  end

  def test_upgrade_of_a_server
    skip "raises with a body" if OLD
    server = HTTP2::Server.new
    sent = []
    server.on(:frame) { |bytes| sent << bytes }
    seen = []
    server.on(:stream) do |stream|
      seen << stream.id
      stream.on(:headers) { |headers| seen << headers }
      stream.on(:data) { |data| seen << data }
      stream.on(:half_close) { seen << :half_close }
    end
    settings = HTTP2::Client.settings_header(settings_max_concurrent_streams: 7)
    server.upgrade(settings, REQUEST, "body")
    assert_equal [1, REQUEST, "body", :half_close], seen
    assert_equal 7, server.remote_settings[:settings_max_concurrent_streams]
    assert_equal :waiting_magic, server.state
    assert_equal :settings, parsed(sent.first)[:type]
  end

  # Frames that a client may send for a response before it has received its end (RFC 9113 §5.1).
  LATE = [[:window_update, { increment: 5 }], [:rst_stream, { error: :cancel }]].freeze

  def test_late_frames_for_the_stream_of_an_upgrade
    skip "raises at an upgrade" if OLD
    LATE.each do |type, fields|
      server, stream = upgraded_server
      stream.headers(RESPONSE, end_stream: true)
      assert_equal :closed, stream.state
      server << frame(type, stream: 1, **fields)
      assert_equal :connected, server.state
    end
  end

  def test_late_frames_for_a_stream_that_priority_made
    skip "keeps streams that are closed" if OLD
    LATE.each do |type, fields|
      server, = connected_server
      streams = []
      server.on(:stream) { |stream| (streams << stream unless streams.include?(stream)) && nil }
      server << frame(:priority, stream: 3, weight: 1, dependency: 0, exclusive: false)
      server << headers_frame(REQUEST, stream: 3, names: %i[end_headers end_stream])
      assert_equal [3], streams.map(&:id)
      streams[0].headers(RESPONSE, end_stream: true)
      assert_equal :closed, streams[0].state
      server << frame(type, stream: 3, **fields)
      assert_equal :connected, server.state
    end
  end

  def test_upgrade_of_a_client
    client = HTTP2::Client.new
    stream = client.upgrade
    assert_equal 1, stream.id
    assert_equal :half_closed_local, stream.state
    assert_equal 3, client.new_stream.id
    assert_raises(HTTP2::Error::ProtocolError) { client.upgrade }
  end

  def test_copies_go_their_own_way
    client, = connected_client
    copy = client.dup
    assert_raises(HTTP2::Error::ProtocolError) { copy << frame(:data, stream: 31, payload: "x") }
    assert_equal %i[closed connected], [copy.state, client.state]
  end
end
