# frozen_string_literal: true

module Wireloom
  # WebSocket (RFC 6455, permessage-deflate RFC 7692) without I/O: bytes go in by Connection#receive, which returns their
  # events, and come out by Connection#take_output. Sockets, threads and fibers are the program's.
  #
  # Text messages are Strings in UTF-8, binary ones Strings in BINARY; every other event is one of the classes below.
  module WebSocket
    # A call that is impossible: a message on a connection that is not open, text that is not UTF-8, …
    class Error < Wireloom::Error
    end

    # A client asks for a connection; Server#accept or Server#reject answers.
    Request = Struct.new(:path, :query, :host, :origin, :subprotocols, :headers)
    # The handshake is over: messages can be sent.
    Open = Struct.new(:subprotocol, :compressed)
    # The server declined, by an HTTP response. The transport is to be closed.
    Refused = Struct.new(:status, :headers)
    # A ping; its pong is in the output already.
    Ping = Struct.new(:data)
    # A pong, with the seconds since the ping that it answers, if this end sent one.
    Pong = Struct.new(:data, :round_trip)
    # The peer's Close frame; +code+ is nil when it had none.
    Close = Struct.new(:code, :reason)
    # The peer broke a rule or a limit, which +message+ names. The Close frame is in the output already.
    Failure = Struct.new(:code, :message)

    # One end of a WebSocket. Each call is atomic; see the guide "Threads, fibers and Ractors".
    class Connection
      # Two objects with the state of one connection would both answer the peer.
      undef_method :dup, :clone

      # Ractor#send copies without +dup+.
      def initialize_copy(_other)
        raise TypeError, "a connection cannot be copied: make it in the Ractor that uses it"
      end
      private :initialize_copy

      # @!method receive(bytes)
      #   Takes bytes from the peer. What a peer does wrong makes a Failure event, and never raises. After NoMemoryError the next call
      #   returns the events of these bytes, or a Failure if there was no memory for the bytes. With permessage-deflate it may leave bytes
      #   for the next call, see {#input?}.
      #   @param bytes [String] empty to continue with those
      #   @return [Array<String, Struct>] messages and events, in order
      #   @raise [Wireloom::WebSocket::Error] when +initialize+ was overridden without +super+

      # @!method eof
      #   The peer will send no more.
      #   @return [nil]

      # @!method take_output
      #   NoMemoryError loses nothing: the next call returns the bytes.
      #   @return [String] the bytes to write to the peer, BINARY

      # @!method output?
      #   @return [Boolean] whether there are bytes to write

      # @!method input?
      #   @return [Boolean] whether bytes wait because those before them inflated to 1 MiB more: handle the events, then call `receive("")`

      # @!method binary(message)
      #   Sends a binary message.
      #   @param message [String]
      #   @return [nil]
      #   @raise [Wireloom::WebSocket::Error] when the connection is not open, or the queue is full

      # @!method timeout
      #   @return [Float, nil] seconds until {#tick} has something to do; nil for no deadline

      # @!method tick
      #   Acts on the deadlines that have passed: pings, a silent peer, a closing handshake that takes too long. None has passed while input
      #   waits, see {#input?}.
      #   @return [nil]

      # @!method congested?
      #   @return [Boolean] whether the output queue is full enough that the program should send later

      # @!method clean?
      #   @return [Boolean] whether both ends have sent a Close frame

      # @!method compressed?
      #   @return [Boolean] whether permessage-deflate was negotiated

      # @!method subprotocol
      #   @return [String, nil] the subprotocol that was agreed on

      # @!method close_code
      #   @return [Integer, nil] the code that the connection ended with (RFC 6455 §7.1.5); nil while it has not

      # Sends a message: text, or binary when its encoding is BINARY.
      #
      # @param message [String]
      # @return [nil]
      # @raise [Wireloom::WebSocket::Error] when the connection is not open, the queue is full or text is invalid
      def send(message)
        message.encoding == Encoding::BINARY ? binary(message) : text(message)
      end

      # Sends a text message, transcoded to UTF-8 where necessary.
      #
      # @param message [String]
      # @return [nil]
      # @raise [Wireloom::WebSocket::Error] as for {#send}
      def text(message)
        encoding = message.encoding
        unless encoding == Encoding::UTF_8 || encoding == Encoding::BINARY || encoding == Encoding::US_ASCII
          message = message.encode(Encoding::UTF_8)
        end
        send_text(message)
      end

      # Sends a ping.
      #
      # @param data [String] of up to 125 bytes
      # @return [nil]
      # @raise [Wireloom::WebSocket::Error] when it is longer, or the connection is not open
      def ping(data = "")
        send_ping(data)
      end

      # Begins the closing handshake. Messages may still arrive until the Close event.
      #
      # @param code [Integer, nil] 1000 to 1003, 1007 to 1014 or 3000 to 4999; nil for a Close frame without one
      # @param reason [String] of up to 123 bytes
      # @return [nil]
      # @raise [Wireloom::WebSocket::Error] for another code
      def close(code = 1000, reason = "")
        send_close(code, reason)
      end

      # @return [:connecting, :open, :closing, :closed]
      def state
        state_name.to_sym
      end

      # @return [Boolean] whether messages can be sent
      def open?
        state_name == "open"
      end

      # @return [Boolean] whether nothing is left to be done but to write the output and to close the transport
      def closed?
        state_name == "closed"
      end

      # @return [:open, :shut_down_write, :close] the state that the transport should be in once the output is written
      def transport
        transport_name.to_sym
      end

      # @return [String]
      def inspect
        "#<#{self.class} #{state_name}>"
      end
    end

    # The client's end.
    class Client < Connection
      # Connecting, and TLS, are the program's. Limits are in bytes, times in seconds; nil takes the default.
      #
      # @param url [String] a `ws:` or `wss:` URL
      # @param subprotocols [Array<String>] offered, the preferred one first
      # @param origin [String, nil]
      # @param headers [Hash, Array<Array(String, String)>] added to the request
      # @param deflate [Boolean, Hash] offers permessage-deflate; the Hash may have :level, :memory_level, :min_length,
      #   :server_no_context_takeover, :client_no_context_takeover, :server_max_window_bits and :client_max_window_bits
      # @param max_message_length [Integer, nil] after inflation
      # @param max_queued_length [Integer, nil] output that waits
      # @param max_inflate_ratio [Integer, nil] how many bytes a compressed byte may become
      # @param close_timeout [Numeric, nil] for the closing handshake
      # @param ping_after [Numeric, nil] a ping goes out after this much silence
      # @param dead_after [Numeric, nil] the connection fails after this much silence
      # @raise [Wireloom::WebSocket::Error] when the URL or a header is invalid
      def initialize(url, subprotocols: [], origin: nil, headers: {}, deflate: false, max_message_length: nil,
                     max_queued_length: nil, max_inflate_ratio: nil, close_timeout: nil, ping_after: nil, dead_after: nil)
        super()
        ask(url, { subprotocols: subprotocols, origin: origin, headers: headers, deflate: deflate,
                   max_message_length: max_message_length, max_queued_length: max_queued_length,
                   max_inflate_ratio: max_inflate_ratio, close_timeout: close_timeout, ping_after: ping_after,
                   dead_after: dead_after })
      end
    end

    # The server's end.
    class Server < Connection
      # @return [Request, nil] the request, once it has arrived
      attr_reader :request

      # The server's end for a request that a Rack server has read; the socket comes from `rack.hijack`.
      #
      # @param env [Hash{String => Object}] of Rack
      # @param options [Hash] those of {#initialize}
      # @return [Server] that waits for {#accept} or {#reject}
      # @raise [Wireloom::WebSocket::Error] when the request is no WebSocket handshake
      def self.rack(env, **options)
        new(**options).tap { |server| server.__send__(:take_rack, env, options) }
      end

      # @param deflate [Boolean, Hash] accepts permessage-deflate; see {Client#initialize} for this and the others
      # @param max_message_length [Integer, nil]
      # @param max_queued_length [Integer, nil]
      # @param max_inflate_ratio [Integer, nil]
      # @param close_timeout [Numeric, nil]
      # @param ping_after [Numeric, nil]
      # @param dead_after [Numeric, nil]
      def initialize(deflate: false, max_message_length: nil, max_queued_length: nil, max_inflate_ratio: nil,
                     close_timeout: nil, ping_after: nil, dead_after: nil)
        super()
        @request = nil
        listen({ deflate: deflate, max_message_length: max_message_length, max_queued_length: max_queued_length,
                 max_inflate_ratio: max_inflate_ratio, close_timeout: close_timeout, ping_after: ping_after,
                 dead_after: dead_after })
      end

      # Takes bytes from the client.
      #
      # @param bytes [String]
      # @return [Array<String, Struct>] messages and events, in order
      # @raise [Wireloom::WebSocket::Error] when +initialize+ was overridden without +super+
      def receive(bytes)
        events = super
        @request ||= events.find { |event| event.is_a?(Request) } unless @request
        events
      end

      # Accepts the request, with one of the subprotocols that it offers.
      #
      # @param subprotocol [String, nil]
      # @param headers [Hash, Array<Array(String, String)>, nil] added to the response
      # @return [Array<String, Struct>] Open, and the events of input that came early, as {#receive} returns them
      # @raise [Wireloom::WebSocket::Error] when no request waits, or the subprotocol was not offered
      def accept(subprotocol: nil, headers: nil)
        grant(subprotocol, headers)
      end

      # Rejects the request by an HTTP status. The transport is to be closed behind the response.
      #
      # @param status [Integer] of 300 or more
      # @param headers [Hash, Array<Array(String, String)>, nil]
      # @param body [String, nil] plain text
      # @return [nil]
      # @raise [Wireloom::WebSocket::Error] when no request waits
      def reject(status = 403, headers: nil, body: nil)
        refuse(status, headers, body)
      end

      private

      def take_rack(env, options)
        fields = env.filter_map do |name, value|
          [name.delete_prefix("HTTP_").tr("_", "-").downcase, value] if name.start_with?("HTTP_") && value.is_a?(String)
        end
        # Bytes: not all have the same encoding.
        path, query = "#{env["SCRIPT_NAME"].to_s.b}#{env["PATH_INFO"].to_s.b}", env["QUERY_STRING"].to_s.b
        target = query.empty? ? path : "#{path}?#{query}"
        event = listen_to(env["REQUEST_METHOD"], target.empty? ? "/" : target, fields, options)
        raise Error, event.message if event.is_a?(Failure)

        @request = event
      end
    end
  end
end
