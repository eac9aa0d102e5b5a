# frozen_string_literal: true

module WebSocket
  # In place of the gem `websocket-extensions` where it is not installed: nothing can be added, so nothing is negotiated.
  class Extensions
    ExtensionError = Class.new(ArgumentError)

    # The grammar of Sec-WebSocket-Extensions (RFC 6455 §9.1).
    class Parser
      ParseError = Class.new(ExtensionError)

      TOKEN = /[!#$%&'*+\-.^_`|~0-9A-Za-z]+/
      QUOTED = /"(?:\\[\x00-\x7f]|[^\x00-\x08\x0a-\x1f\x7f"\\])*"/
      PARAMETER = /#{TOKEN}(?:=(?:#{TOKEN}|#{QUOTED}))?/
      EXTENSION = /#{TOKEN}(?: *; *#{PARAMETER})*/
      HEADER = /\A#{EXTENSION}(?: *, *#{EXTENSION})*\z/
      private_constant :TOKEN, :QUOTED, :PARAMETER, :EXTENSION, :HEADER

      # Raises ParseError unless +header+ keeps to the grammar.
      #
      # @param header [String, nil]
      # @raise [ParseError]
      def self.validate(header)
        return if header.nil? || header.empty? || HEADER.match?(header)

        raise ParseError, "Invalid Sec-WebSocket-Extensions header: #{header}"
      end
    end

    # @param _extension [Object]
    # @raise [LoadError]
    def add(_extension)
      raise LoadError, "wireloom: extensions need the gem websocket-extensions: add it to your Gemfile"
    end

    # @return [nil]
    def generate_offer; end

    # @param header [String, nil]
    # @return [nil]
    # @raise [ParseError] when it breaks the grammar
    def generate_response(header)
      Parser.validate(header)
    end

    # @param header [String, nil]
    # @raise [ExtensionError] when it is not empty
    def activate(header)
      Parser.validate(header)
      raise ExtensionError, "Server sent an extension response for an unknown extension: #{header}" if header && header != ""
    end

    # @param frame [Driver::Hybi::Frame]
    # @return [Boolean] whether no reserved bit is set
    def valid_frame_rsv?(frame)
      !(frame.rsv1 || frame.rsv2 || frame.rsv3)
    end

    # @param message [Driver::Hybi::Message]
    # @return [Driver::Hybi::Message] the same
    def process_incoming_message(message)
      message
    end

    # @param message [Driver::Hybi::Message]
    # @return [Driver::Hybi::Message] the same
    def process_outgoing_message(message)
      message
    end

    # Does nothing.
    def close; end
  end
end
