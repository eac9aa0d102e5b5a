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
    # A stream ended before its time. +message+ says why this end reset it; it is nil when the peer did.
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
    # The client changed the priority of a response; it is heeded already.
    Priority = Struct.new(:stream, :urgency, :incremental)
    # Where else an origin is served.
    AltSvc = Struct.new(:stream, :origin, :value)
    # The origins that the server says the connection serves.
    Origin = Struct.new(:origins)
    # The peer broke a rule or a limit, which +message+ names; the connection is over. GOAWAY is in the output already.
    Failure = Struct.new(:code, :message)

    # One end of a connection. Methods that are not here are native:
    #
    # - +receive(bytes)+ takes bytes and returns events; +eof+ says that no more will come; both return an Array
    # - +take_output+ returns the bytes to write, +output?+ whether there are any
    # - +input?+ says that bytes wait until output was taken: take it, then call <tt>receive("")</tt>
    # - +timeout+ returns the seconds until +tick+ has something to do, or nil; +tick+ returns events
    # - +trailers(stream, headers)+ sends trailers, +ping(eight_bytes)+ a PING
    # - +capacity(stream)+ says how much a stream should be given now; at 0, wait for Writable
    # - +release(stream, length)+ gives window back when the connection was made with <tt>auto_release: false</tt>
    # - +shutdown+ ends gracefully: streams that are open go on
    # - +closed?+, +going_away?+, +streams+ (how many are open), +open_capacity+ (how many more may be), +peer_settings+
    class Connection
      # Options are settings (RFC 9113 §6.5.2), +:header_table_size+, +:enable_push+, +:max_concurrent_streams+,
      # +:initial_window_size+, +:max_frame_size+, +:max_header_list_size+ and +:enable_connect_protocol+; and
      # +:connection_window+, +:stream_window_max+, +:stream_queue+ in bytes, and +:auto_release+.
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

      undef_method :dup, :clone

      # Sends content. All of it is taken; bytes beyond the windows are buffered.
      def data(stream, data, end_stream: false)
        send_data(stream, data, end_stream)
      end

      # Ends a stream before its time.
      def reset(stream, code = :cancel)
        send_reset(stream, code)
      end

      # Changes how urgent a response is, from 0 (most) to 7.
      def prioritize(stream, urgency:, incremental: false)
        set_priority(stream, urgency, incremental)
      end

      # Ends the connection at once.
      def abort(code = :no_error, message = "")
        end_now(code, message)
      end

      def inspect
        "#<#{self.class} #{closed? ? "closed" : "streams: #{streams}"}>"
      end
    end

    # The client's end.
    class Client < Connection
      # Sends a request, at once or as soon as the peer allows one more; returns its stream. Content follows by #data.
      def request(headers, end_stream: false)
        send_request(headers, end_stream)
      end
    end

    # The server's end.
    class Server < Connection
      # Sends the final response.
      def respond(stream, headers, end_stream: false)
        send_response(stream, headers, end_stream)
      end

      # Sends an interim response, 100 to 199.
      def inform(stream, headers)
        send_informational(stream, headers)
      end

      # Promises a response to a request that the client has not made; returns the stream that it is to be sent on.
      def promise(stream, headers)
        send_promise(stream, headers)
      end
    end
  end
end
