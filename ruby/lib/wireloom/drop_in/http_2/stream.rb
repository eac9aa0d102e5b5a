# frozen_string_literal: true

module HTTP2
  # One request and its response. Methods that are not here are native.
  class Stream
    STREAM_OPEN_STATES = %i[open half_closed_local half_closing closing].freeze

    include FlowBuffer
    include Emitter
    include Error

    DEFAULT_WEIGHT = HTTP2::DEFAULT_WEIGHT

    # @!method receive(frame)
    #   Takes a frame from the peer, and calls the listeners of its events.
    #   @param frame [Hash{Symbol => Object}]
    #   @raise [Error::Error] when the state of the stream does not allow it

    # @!method <<(frame)
    #   @see #receive

    # @!method send(frame)
    #   Sends a frame.
    #   @param frame [Hash{Symbol => Object}]
    #   @raise [Error::InternalError] when the state of the stream does not allow it

    # @!method close(error = :stream_closed)
    #   Sends RST_STREAM.
    #   @param error [Symbol] an error code (RFC 9113 §7)

    # @!method cancel
    #   Closes the stream with `:cancel`.

    # @!method refuse
    #   Closes the stream with `:refused_stream`.

    # @!method window_update(increment)
    #   Gives window back for the stream.
    #   @param increment [Integer] in bytes
    #   @raise [Error::CompressionError] outside of 1 to 2^31 - 1

    # @!method on(event)
    #   Calls the block each time +event+ happens, until it returns +:delete+.
    #   @param event [Symbol] `:reserved`, `:active`, `:headers`, `:data`, `:half_close`, `:close`, `:priority`, `:promise_headers`,
    #     `:altsvc`, `:window`, `:local_window`
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
    #   @return [FrameBuffer] frames that wait for the window of the stream

    # @!method buffered_amount
    #   @return [Integer] bytes of content that wait for windows

    # @!method id
    #   @return [Integer] odd for requests, even for pushes

    # @!method state
    #   @return [Symbol] (RFC 9113 §5.1) `:idle`, `:open`, `:half_closed_local`, `:half_closed_remote`, `:reserved_local`,
    #     `:reserved_remote`, `:half_closing`, `:closing` or `:closed`

    # @!method closed
    #   @return [Symbol, false] how it was closed

    # @!method closed?
    #   @return [Boolean]

    # @!method parent
    #   @return [Stream, nil] the request that a push belongs to

    # @!method weight
    #   @return [Integer]

    # @!method dependency
    #   @return [Integer]

    # @!method local_window
    #   @return [Integer] bytes that the peer may send

    # @!method window
    #   @see #local_window

    # @!method remote_window
    #   @return [Integer] bytes that this end may send

    # @param connection [Connection]
    # @param id [Integer]
    # @param weight [Integer]
    # @param dependency [Integer]
    # @param exclusive [Boolean] not used
    # @param parent [Stream, nil] of a push
    # @param state [Symbol]
    def initialize(connection:, id:, weight: 16, dependency: 0, exclusive: false, parent: nil, state: :idle)
      set_up(connection, id, weight, dependency, parent, state)
    end

    # Sends HEADERS: pairs or a Hash.
    #
    # @param headers [Array<Array(String, String)>, Hash]
    # @param end_headers [Boolean] false when the program sends CONTINUATION itself
    # @param end_stream [Boolean]
    # @raise [Error::InternalError] when the state of the stream does not allow it
    def headers(headers, end_headers: true, end_stream: false)
      send_headers(headers, end_headers, end_stream)
    end

    # Sends DATA.
    #
    # @param payload [String] bytes beyond the windows are buffered
    # @param end_stream [Boolean]
    # @raise [Error::InternalError] when the state of the stream does not allow it
    def data(payload, end_stream: true)
      send_data(payload, end_stream)
    end

    # Pushes a response to a request that the client did not send: yields its stream.
    #
    # @param headers [Array<Array(String, String)>, Hash] of the promised request
    # @param end_headers [Boolean]
    # @yieldparam push [Stream]
    # @raise [ArgumentError] without a block
    def promise(headers, end_headers: true, &block)
      raise ArgumentError, "must provide callback" unless block

      flags = end_headers ? END_HEADERS : 0
      connection.__send__(:promise, self, headers, flags, &block) if connection.is_a?(Server)
      emit(:promise, self, headers, flags, &block)
    end

    # Sends PRIORITY, which clients may.
    #
    # @param weight [Integer] 1 to 256
    # @param dependency [Integer]
    # @param exclusive [Boolean]
    # @raise [Error::InternalError] on a push
    def reprioritize(weight: 16, dependency: 0, exclusive: false)
      refuse_frame if id.even?
      send({ type: :priority, weight: weight, dependency: dependency, exclusive: exclusive })
    end

    # Yields +payload+ in parts of at most +size+ bytes; the last one is returned.
    #
    # @param payload [String]
    # @param size [Integer]
    # @yieldparam chunk [String]
    # @return [String]
    def chunk_data(payload, size)
      cursor = 0
      while payload.bytesize - cursor > size
        yield payload.byteslice(cursor, size)
        cursor += size
      end
      payload.byteslice(cursor..-1)
    end
  end
end
