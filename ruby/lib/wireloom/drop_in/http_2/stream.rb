# frozen_string_literal: true

module HTTP2
  # One request and its response. Methods that are not here are native.
  class Stream
    STREAM_OPEN_STATES = %i[open half_closed_local half_closing closing].freeze

    include FlowBuffer
    include Emitter
    include Error

    DEFAULT_WEIGHT = HTTP2::DEFAULT_WEIGHT

    def initialize(connection:, id:, weight: 16, dependency: 0, exclusive: false, parent: nil, state: :idle) # rubocop:disable Lint/UnusedMethodArgument
      set_up(connection, id, weight, dependency, parent, state)
    end

    # Sends HEADERS: pairs or a Hash.
    def headers(headers, end_headers: true, end_stream: false)
      send_headers(headers, end_headers, end_stream)
    end

    # Sends DATA.
    def data(payload, end_stream: true)
      send_data(payload, end_stream)
    end

    # Pushes a response to a request that the client did not send: yields its stream.
    def promise(headers, end_headers: true, &block)
      raise ArgumentError, "must provide callback" unless block

      flags = end_headers ? END_HEADERS : 0
      connection.__send__(:promise, self, headers, flags, &block) if connection.is_a?(Server)
      emit(:promise, self, headers, flags, &block)
    end

    # Sends PRIORITY, which clients may.
    def reprioritize(weight: 16, dependency: 0, exclusive: false)
      refuse_frame if id.even?
      send({ type: :priority, weight: weight, dependency: dependency, exclusive: exclusive })
    end

    # Yields +payload+ in parts of at most +size+ bytes; the last one is returned.
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
