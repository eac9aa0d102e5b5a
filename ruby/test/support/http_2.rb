# frozen_string_literal: true

require_relative "../test_helper"

original_or_drop_in "http_2", "http/2"

# Base of the tests of the drop-in for http-2.
class HTTP2TestCase < Wireloom::TestCase
  REQUEST = [[":method", "GET"], [":scheme", "https"], [":authority", "www.example.org"], [":path", "/resource"]].freeze
  RESPONSE = [[":status", "200"], ["content-type", "text/plain"]].freeze
  # Releases before 1.2 have lists of names for flags and know less.
  OLD = ORIGINAL && Gem::Version.new(HTTP2::VERSION) < Gem::Version.new("1.2")
  BEFORE_1_3 = ORIGINAL && Gem::Version.new(HTTP2::VERSION) < Gem::Version.new("1.3")
  FLAGS = { ack: 1, end_stream: 1, end_headers: 4, priority: 32 }.freeze

  def framer
    @framer ||= HTTP2::Framer.new
  end

  def flags(*names)
    OLD ? names : names.sum { |name| FLAGS.fetch(name) }
  end

  def frame(type, names = [], **rest)
    framer.generate({ type: type, flags: flags(*names), **rest })
  end

  def settings_frame(payload = [], names = [])
    frame(:settings, names, stream: 0, payload: payload)
  end

  def headers_frame(headers, stream: 1, names: [:end_headers])
    frame(:headers, names, stream: stream, payload: block(headers))
  end

  # Both ends, joined.
  def pair(client_settings: {}, server_settings: {})
    client = HTTP2::Client.new(**client_settings)
    server = HTTP2::Server.new(**server_settings)
    client.on(:frame) { |bytes| server << bytes }
    server.on(:frame) { |bytes| client << bytes }
    client.send_connection_preface
    [client, server]
  end

  # A client whose server said hello, and what it sends from then on.
  def connected_client(**settings)
    client = HTTP2::Client.new(**settings)
    sent = []
    client.on(:frame) { |bytes| sent << bytes }
    client << settings_frame
    client << settings_frame([], [:ack])
    sent.clear
    [client, sent]
  end

  # A server whose client said hello, and what it sends from then on.
  def connected_server(**settings)
    server = HTTP2::Server.new(**settings)
    sent = []
    server.on(:frame) { |bytes| sent << bytes }
    server << HTTP2::CONNECTION_PREFACE_MAGIC.dup
    server << settings_frame
    server << settings_frame([], [:ack])
    sent.clear
    [server, sent]
  end

  # A server after an upgrade, whose client said hello; the stream of the request; what the server sends from then on.
  def upgraded_server
    server = HTTP2::Server.new
    sent, opened = [], nil
    server.on(:frame) { |bytes| sent << bytes }
    server.once(:stream) { |stream| opened = stream }
    server.upgrade(HTTP2::Client.settings_header(settings_max_concurrent_streams: 7), REQUEST, "")
    server << HTTP2::CONNECTION_PREFACE_MAGIC.dup
    server << settings_frame
    server << settings_frame([], [:ack])
    sent.clear
    [server, opened, sent]
  end

  def block(headers)
    HTTP2::Header::Compressor.new.encode(headers)
  end

  def parsed(bytes)
    framer.parse(buffer(bytes.to_str.dup))
  end

  def parsed_as(sent, *keys)
    sent.map { |bytes| parsed(bytes).values_at(*keys) }
  end

  def buffer(bytes)
    OLD ? HTTP2::Buffer.new(bytes) : bytes
  end
end
