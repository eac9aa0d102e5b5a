# frozen_string_literal: true

module HTTP2
  # One end of a connection; use Client or Server. Methods that are not here are native.
  class Connection
    include FlowBuffer
    include Emitter
    include Error
    include BufferUtils

    # @!method receive(bytes)
    #   Takes bytes from the peer, and calls the listeners of their events.
    #   @param bytes [String]
    #   @raise [Error::Error] when the peer breaks a rule; GOAWAY or RST_STREAM was sent by then
    #   @raise [TypeError] for another object

    # @!method <<(bytes)
    #   @see #receive

    # @!method goaway(error = :no_error, payload = nil)
    #   Sends GOAWAY: no new streams.
    #   @param error [Symbol] an error code (RFC 9113 §7)
    #   @param payload [String, nil] for the peer's operator

    # @!method window_update(increment)
    #   Gives window back for the connection.
    #   @param increment [Integer] in bytes
    #   @raise [Error::CompressionError] outside of 1 to 2^31 - 1

    # @!method settings(payload)
    #   Sends SETTINGS, which are in force once the peer acknowledged them.
    #   @param payload [Hash{Symbol => Integer}, Array<Array(Symbol, Integer)>]
    #   @raise [Error::ProtocolError] for a value outside of its range

    # @!method on(event)
    #   Calls the block each time +event+ happens, until it returns +:delete+.
    #   @param event [Symbol] `:frame`, `:stream`, `:promise`, `:goaway`, `:settings_ack`, `:altsvc`, `:origin`, `:frame_sent`,
    #     `:frame_received`
    #   @raise [ArgumentError] without a block

    # @!method once(event)
    #   Calls the block the next time only.
    #   @param event [Symbol]
    #   @raise [ArgumentError] without a block

    # @!method emit(event, *args)
    #   Calls the listeners of +event+.
    #   @param event [Symbol]
    #   @param args [Array] what they are called with

    # @!method flush
    #   Sends what is buffered and what the windows allow now.

    # @!method send_buffer
    #   @return [FrameBuffer] frames that wait for the window of the connection

    # @!method buffered_amount
    #   @return [Integer] bytes of content that wait for windows

    # @!method state
    #   @return [Symbol] `:waiting_magic`, `:waiting_connection_preface`, `:connected`, `:closing` or `:closed`

    # @!method closed?
    #   @return [Boolean] whether the connection is over, or ends

    # @!method closing?
    #   @return [Boolean] whether GOAWAY was sent

    # @!method local_window
    #   @return [Integer] bytes that the peer may send

    # @!method window
    #   @see #local_window

    # @!method remote_window
    #   @return [Integer] bytes that this end may send

    # @!method local_settings
    #   @return [Settings, Hash] the settings of this end that are in force

    # @!method remote_settings
    #   @return [Settings, Hash] the settings of the peer

    # @!method pending_settings
    #   @return [Array] settings that the peer has not acknowledged

    # @!method active_stream_count
    #   @return [Integer] how many streams are open

    # @!method active_stream_count=(count)
    #   @param count [Integer]

    # +settings+ may hold options of HPACK too: +:huffman+, +:index+ and +:table_size+.
    #
    # @param settings [Hash{Symbol => Object}]
    # @raise [ArgumentError] for a setting that does not exist
    def initialize(settings = {})
      local = Settings.new(**settings)
      set_up(is_a?(Client), local.to_h, local, Settings.new(**SPEC_DEFAULT_CONNECTION_SETTINGS))
    end

    # Opens a stream.
    #
    # @param weight [Integer]
    # @param dependency [Integer]
    # @param exclusive [Boolean] not used
    # @param parent [Stream, nil] of a push
    # @param state [Symbol]
    # @return [Stream]
    # @raise [Error::ConnectionClosed] when the connection ends
    # @raise [Error::StreamLimitExceeded] when the peer allows no more
    def new_stream(weight: DEFAULT_WEIGHT, dependency: 0, exclusive: false, parent: nil, state: :idle)
      open_stream(weight, dependency, parent, state)
    end

    # Sends PING with eight bytes; the block is called with them when they come back.
    #
    # @param payload [String] eight bytes
    # @raise [Error::CompressionError] for another length
    def ping(payload, &block)
      send_ping(payload)
      once(:ack, &block) if block
    end
  end

  # A client's end.
  class Client < Connection
    public :send

    # The value of an HTTP2-Settings header.
    #
    # @param settings [Array<Array(Symbol, Integer)>]
    # @return [String]
    def self.settings_header(settings)
      payload = Framer.new.generate({ type: :settings, stream: 0, payload: settings })
      [payload.byteslice(9..-1)].pack("m0").tr("+/", "-_")
    end

    # Begins the connection, unless that was done.
    def send_connection_preface
      begin_connection
    end

    # After an upgrade from HTTP/1.1: the stream on which the answer comes.
    #
    # @return [Stream]
    # @raise [Error::ProtocolError] when streams were opened before
    def upgrade
      raise ProtocolError unless streams_opened.zero?

      upgrade_phase(0)
      send_connection_preface
      stream = new_stream(state: :half_closed_local)
      upgrade_phase(1)
      stream
    end
  end

  # A server's end.
  class Server < Connection
    # The origins that are announced to the client (RFC 8336).
    #
    # @return [Array<String>]
    attr_reader :origin_set

    # @param settings [Hash{Symbol => Object}]
    # @raise [ArgumentError] for a setting that does not exist
    def initialize(settings = {})
      @origin_set = []
      super
    end

    # Announces origins to the client.
    #
    # @param origins [Array<String>]
    def origin_set=(origins)
      @origin_set = Array(origins).map(&:to_s)
      set_origins(@origin_set, !@origin_set.empty?)
    end

    # After an upgrade from HTTP/1.1: the request becomes stream 1.
    #
    # @param settings [String] the value of HTTP2-Settings
    # @param headers [Array<Array(String, String)>]
    # @param body [String]
    # @raise [Error::ProtocolError] when the settings are invalid
    def upgrade(settings, headers, body)
      upgrade_phase(0)
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
      upgrade_phase(2)
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
