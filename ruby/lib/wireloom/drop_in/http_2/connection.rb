# frozen_string_literal: true

module HTTP2
  # One end of a connection; use Client or Server. Methods that are not here are native.
  class Connection
    include FlowBuffer
    include Emitter
    include Error
    include BufferUtils

    # +settings+ may hold options of HPACK too: +:huffman+, +:index+ and +:table_size+.
    def initialize(settings = {})
      local = Settings.new(**settings)
      set_up(is_a?(Client), local.to_h, local, Settings.new(**SPEC_DEFAULT_CONNECTION_SETTINGS))
    end

    # Opens a stream.
    def new_stream(weight: DEFAULT_WEIGHT, dependency: 0, exclusive: false, parent: nil, state: :idle) # rubocop:disable Lint/UnusedMethodArgument
      open_stream(weight, dependency, parent, state)
    end

    # Sends PING with eight bytes; the block is called with them when they come back.
    def ping(payload, &block)
      send_ping(payload)
      once(:ack, &block) if block
    end
  end

  # A client's end.
  class Client < Connection
    public :send

    # The value of an HTTP2-Settings header.
    def self.settings_header(settings)
      payload = Framer.new.generate({ type: :settings, stream: 0, payload: settings })
      [payload.byteslice(9..-1)].pack("m0").tr("+/", "-_")
    end

    # Begins the connection, unless that was done.
    def send_connection_preface
      begin_connection
    end

    # After an upgrade from HTTP/1.1: the stream on which the answer comes.
    def upgrade
      raise ProtocolError unless streams_opened.zero?

      upgrade_stage(0)
      send_connection_preface
      stream = new_stream(state: :half_closed_local)
      upgrade_stage(1)
      stream
    end
  end

  # A server's end.
  class Server < Connection
    # The origins that are announced to the client (RFC 8336).
    attr_reader :origin_set

    def initialize(settings = {})
      @origin_set = []
      super
    end

    def origin_set=(origins)
      @origin_set = Array(origins).map(&:to_s)
      set_origins(@origin_set, !@origin_set.empty?)
    end

    # After an upgrade from HTTP/1.1: the request becomes stream 1.
    def upgrade(settings, headers, body)
      upgrade_stage(0)
      receive(CONNECTION_PREFACE_MAGIC)
      payload = settings.to_s.tr("-_", "+/").unpack1("m")
      receive(Framer.new.common_header({ type: :settings, stream: 0, flags: 0, length: payload.bytesize }, buffer: payload))

      stream = activate_stream(1)
      emit(:stream, stream)
      flags = body.empty? ? END_HEADERS | END_STREAM : END_HEADERS
      stream << { type: :headers, flags: flags, stream: 1, weight: DEFAULT_WEIGHT, dependency: 0, exclusive: false,
                  payload: headers }
      stream << { type: :data, stream: 1, payload: body, flags: END_STREAM } unless body.empty?
      # Now the client sends its own preface.
      upgrade_stage(2)
    end

    private

    # A push that a stream was asked for.
    def promise(parent, headers, flags)
      promise = new_stream(parent: parent)
      promise.send({ type: :push_promise, flags: flags, stream: parent.id, promise_stream: promise.id,
                     payload: headers.to_a })
      yield(promise)
    end
  end
end
