# frozen_string_literal: true

module Wireloom
  # HTTP/2 (RFC 9113, HPACK RFC 7541, priorities RFC 9218, extended CONNECT RFC 8441) without I/O: bytes go in by
  # Connection#receive, which returns the events of the whole chunk, and come out by Connection#take_output. Sockets, threads
  # and fibers are the program's.
  #
  # Streams are Integers. Header lists are Arrays of pairs of Strings in UTF-8, pseudo-fields first; content is BINARY. Error
  # codes are Symbols, :cancel; unknown ones are Integers.
  module HTTP2
    # A client's request; +end_stream+ says that it has no content.
    Request = Struct.new(:stream, :headers, :end_stream)
    # The final response.
    Response = Struct.new(:stream, :status, :headers, :end_stream)
    # An interim response, 100 to 199.
    Informational = Struct.new(:stream, :status, :headers)
    # Trailers, which end the message.
    Trailers = Struct.new(:stream, :headers)
    # A chunk of content; +end_stream+ means that it is the last.
    Data = Struct.new(:stream, :data, :end_stream)
    # The server promises a response on the stream +promised+; reset that to refuse it.
    Promise = Struct.new(:stream, :promised, :headers)
    # A stream was reset. +message+ says why this end reset it; it is nil when the peer did.
    Reset = Struct.new(:stream, :code, :message)
    # The peer will not have processed this stream: the request may be sent again, elsewhere.
    Refused = Struct.new(:stream)
    # A stream whose queue was full (Connection#capacity was 0) has room again.
    Writable = Struct.new(:stream)
    # The peer's settings came or changed: see Connection#peer_settings.
    Settings = Class.new
    # The peer has acknowledged this end's settings.
    SettingsAcknowledged = Class.new
    # The answer to Connection#ping, and the seconds that it took.
    Pong = Struct.new(:data, :round_trip)
    # The peer ends the connection; streams of this end beyond +last_stream+ were Refused.
    GoAway = Struct.new(:last_stream, :code, :data)
    # The client changed the priority of a response, which is in force already.
    Priority = Struct.new(:stream, :urgency, :incremental)
    # Where else an origin is served.
    AltSvc = Struct.new(:stream, :origin, :value)
    # The origins that the server says the connection serves.
    Origin = Struct.new(:origins)
    # The peer broke a rule or a limit, which +message+ names; the connection is over. GOAWAY is in the output already.
    Failure = Struct.new(:code, :message)

    # A call that is impossible: on a stream that is gone, with headers that RFC 9113 §8 forbids, … What a peer does wrong never
    # raises: it makes a Failure or a Reset.
    class Error < Wireloom::Error
    end

    # One end of a connection. Each call is atomic; see the guide "Threads, fibers and Ractors".
    class Connection
      # @param options [Hash] settings of this end (RFC 9113 §6.5.2) and limits of the connection
      # @option options [Integer] :header_table_size the largest HPACK table of the peer's encoder, in bytes
      # @option options [Boolean] :enable_push whether the server may push (a client's)
      # @option options [Integer] :max_concurrent_streams how many streams the peer may open
      # @option options [Integer] :initial_window_size the window of each stream, in bytes
      # @option options [Integer] :max_frame_size the longest frame that is taken, in bytes
      # @option options [Integer] :max_header_list_size the largest list of headers that is taken, in bytes
      # @option options [Boolean] :enable_connect_protocol extended CONNECT (RFC 8441; a server's)
      # @option options [Integer] :connection_window the window of the connection, in bytes
      # @option options [Integer] :stream_window_max how large the window of a stream may grow, in bytes
      # @option options [Integer] :stream_queue content of one stream that is buffered before {#capacity} is 0, in bytes
      # @option options [Boolean] :auto_release whether window is given back as soon as content was handed out (true)
      # @raise [ArgumentError] for another option, or a value outside of its range
      def initialize(**options)
        unknown = options.keys - OPTIONS
        raise ArgumentError, "unknown options: #{unknown.join(", ")}" unless unknown.empty?

        set_up(is_a?(Client), options)
      end

      OPTIONS = %i[
        header_table_size enable_push max_concurrent_streams initial_window_size max_frame_size max_header_list_size
        enable_connect_protocol connection_window stream_window_max stream_queue auto_release
      ].freeze
      private_constant :OPTIONS

      # Two objects with the state of one connection would both answer the peer.
      undef_method :dup, :clone

      # Ractor#send copies without +dup+.
      def initialize_copy(_other)
        raise TypeError, "a connection cannot be copied: make it in the Ractor that uses it"
      end
      private :initialize_copy

      # @!method receive(bytes)
      #   Takes bytes from the peer. NoMemoryError ends the connection; the next call returns the events before it, and a Failure.
      #   @param bytes [String] empty to continue with those that wait, see {#input?}
      #   @return [Array<Struct>] their events, in order

      # @!method eof
      #   The peer will send no more.
      #   @return [Array<Struct>] the events of streams that this ends

      # @!method tick
      #   Takes the input that waits, see {#input?}, then acts on the deadlines that have passed.
      #   @return [Array<Struct>] events

      # @!method reading=(is_reading)
      #   Whether the program reads from the transport, as it does at first. While it does not, the peer cannot be late with what
      #   it sends.
      #   @param is_reading [Boolean]

      # @!method timeout
      #   @return [Float, nil] seconds until {#tick} has something to do; nil for no deadline

      # @!method take_output
      #   NoMemoryError loses nothing: the next call returns the bytes.
      #   @return [String] the bytes to write to the peer, BINARY

      # @!method output?
      #   @return [Boolean] whether there are bytes to write

      # @!method input?
      #   @return [Boolean] whether bytes wait, because too much output does, or because the header fields of those before them are 1 MiB
      #     longer: handle the events, take the output, then call `receive("")`

      # @!method closed?
      #   @return [Boolean] whether the connection is over: write the output and close the transport

      # @!method going_away?
      #   @return [Boolean] whether either end has sent GOAWAY: no new streams

      # @!method streams
      #   @return [Integer] how many streams are open

      # @!method open_capacity
      #   @return [Integer] how many more streams this end may open now

      # @!method peer_settings
      #   @return [Hash{Symbol => Integer, Boolean}] the peer's settings, by the names of the options of {#initialize}

      # @!method trailers(stream, headers)
      #   Sends trailers, which end the stream on this side.
      #   @param stream [Integer]
      #   @param headers [Array<Array(String, String)>, Hash]
      #   @return [nil]
      #   @raise [Wireloom::HTTP2::Error] when the stream is gone, or a header is not allowed there

      # @!method capacity(stream)
      #   @param stream [Integer]
      #   @return [Integer] how many bytes of content the stream should be given now; at 0, wait for Writable
      #   @raise [Wireloom::HTTP2::Error] when the stream is gone

      # @!method release(stream, length)
      #   Gives window back, when the connection was made with `auto_release: false`.
      #   @param stream [Integer]
      #   @param length [Integer] bytes of content that the program has consumed
      #   @return [nil]
      #   @raise [Wireloom::HTTP2::Error] for more bytes than were handed out

      # @!method ping(data)
      #   Sends a PING; a Pong event answers it.
      #   @param data [String] eight bytes
      #   @return [nil]
      #   @raise [ArgumentError] for another length
      #   @raise [Wireloom::HTTP2::Error] when the connection is over

      # @!method shutdown
      #   Ends the connection gracefully: streams that are open go on, new ones are refused.
      #   @return [nil]

      # Sends content. All of it is taken; bytes beyond the windows are buffered.
      #
      # @param stream [Integer]
      # @param data [String]
      # @param end_stream [Boolean] whether it is the last
      # @return [nil]
      # @raise [Wireloom::HTTP2::Error] when the stream is gone, or its content has ended
      def data(stream, data, end_stream: false)
        send_data(stream, data, end_stream)
      end

      # Resets a stream: ends it at once, in both directions.
      #
      # @param stream [Integer]
      # @param code [Symbol, Integer] an error code (RFC 9113 §7)
      # @return [nil]
      # @raise [Wireloom::HTTP2::Error] when the stream is gone
      # @raise [ArgumentError] for a Symbol that is no error code
      def reset(stream, code = :cancel)
        send_reset(stream, code)
      end

      # Changes how urgent a response is (RFC 9218).
      #
      # @param stream [Integer]
      # @param urgency [Integer] from 0 (most) to 7
      # @param incremental [Boolean] whether it may be sent in turns with others of the same urgency
      # @return [nil]
      # @raise [Wireloom::HTTP2::Error] when the stream is gone
      def prioritize(stream, urgency:, incremental: false)
        set_priority(stream, urgency, incremental)
      end

      # Ends the connection at once.
      #
      # @param code [Symbol, Integer] an error code (RFC 9113 §7)
      # @param message [String] for the peer's operator
      # @return [nil]
      # @raise [ArgumentError] for a Symbol that is no error code
      def abort(code = :no_error, message = "")
        end_now(code, message)
      end

      # @return [String]
      def inspect
        "#<#{self.class} #{closed? ? "closed" : "streams: #{streams}"}>"
      end
    end

    # The client's end.
    class Client < Connection
      # Sends a request, at once or as soon as the peer allows one more. Content follows by {#data}.
      #
      # @param headers [Array<Array(String, String)>, Hash] with the pseudo-fields; names are lower-cased
      # @param end_stream [Boolean] whether it has no content
      # @return [Integer] its stream
      # @raise [Wireloom::HTTP2::Error] when the connection ends, or a header is not allowed
      def request(headers, end_stream: false)
        send_request(headers, end_stream)
      end
    end

    # The server's end.
    class Server < Connection
      # Sends the final response.
      #
      # @param stream [Integer]
      # @param headers [Array<Array(String, String)>, Hash] with `:status`
      # @param end_stream [Boolean] whether it has no content
      # @return [nil]
      # @raise [Wireloom::HTTP2::Error] when the stream is gone or was answered, or a header is not allowed
      def respond(stream, headers, end_stream: false)
        send_response(stream, headers, end_stream)
      end

      # Sends an interim response.
      #
      # @param stream [Integer]
      # @param headers [Array<Array(String, String)>, Hash] with a `:status` of 100 to 199
      # @return [nil]
      # @raise [Wireloom::HTTP2::Error] as for {#respond}
      def inform(stream, headers)
        send_informational(stream, headers)
      end

      # Promises a response to a request that the client has not made.
      #
      # @param stream [Integer] the request that it belongs to
      # @param headers [Array<Array(String, String)>, Hash] of the promised request
      # @return [Integer] the stream to send the response on
      # @raise [Wireloom::HTTP2::Error] when the client does not take pushes, or the stream is gone
      def promise(stream, headers)
        send_promise(stream, headers)
      end
    end
  end
end
