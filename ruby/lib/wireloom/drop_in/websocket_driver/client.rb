# frozen_string_literal: true

module WebSocket
  class Driver
    # RFC 6455, the client's end.
    class Client < Hybi
      VALID_SCHEMES = %w[ws wss].freeze

      # The server's answer to the handshake.
      #
      # @return [Integer, nil], [Headers]
      attr_reader :status, :headers

      # A value for Sec-WebSocket-Key: 16 random bytes in base64.
      #
      # @return [String]
      def self.generate_key
        [SecureRandom.random_bytes(16)].pack("m0")
      end

      # @param socket [#url, #write]
      # @param options [Hash] as for {Driver.client}
      # @raise [URIError] when the URL is not valid
      def initialize(socket, options = {})
        super
        @ready_state = -1
        @key = Client.generate_key
        @accept = Hybi.generate_accept(@key)
        @http = HTTP::Response.new

        uri = URI.parse(@socket.url)
        raise URIError, "#{@socket.url} is not a valid WebSocket URL" unless VALID_SCHEMES.include?(uri.scheme)

        path = uri.path.nil? || uri.path.empty? ? "/" : uri.path
        @pathname = uri.query ? "#{path}?#{uri.query}" : path

        @headers["Host"] = Driver.host_header(uri)
        @headers["Upgrade"] = "websocket"
        @headers["Connection"] = "Upgrade"
        @headers["Sec-WebSocket-Key"] = @key
        @headers["Sec-WebSocket-Version"] = VERSION
        @headers["Sec-WebSocket-Protocol"] = @protocols.join(", ") unless @protocols.empty?
        @headers["Authorization"] = "Basic #{[[uri.user, uri.password].join(":")].pack("m0")}" if uri.user
      end

      # @return [String]
      def version
        "hybi-#{VERSION}"
      end

      # A request to an HTTP proxy, for a tunnel to the server.
      #
      # @param origin [String] the URL of the proxy
      # @param options [Hash]
      # @return [Proxy]
      def proxy(origin, options = {})
        Proxy.new(self, origin, options)
      end

      # Sends the handshake.
      #
      # @return [Boolean] false when that was done before
      def start
        return false unless @ready_state == -1

        @socket.write(Driver.encode(handshake_request, Encoding::BINARY))
        @ready_state = 0
        true
      end

      # Takes a chunk of input, the handshake first, and calls the listeners of its events.
      #
      # @param chunk [String]
      def parse(chunk)
        return if @ready_state == 3
        return super if @ready_state.positive?

        @http.parse(chunk)
        return fail_handshake("Invalid HTTP response") if @http.error?
        return unless @http.complete?

        validate_handshake
        return if @ready_state == 3

        early = @http.body
        begin
          open
          opened = true
        ensure
          # Behind the exception of a listener it is for the next call.
          @codec.keep(early) unless opened
        end
        parse(early)
      end

      private

      def refuse_masking?
        !@require_masking
      end

      def handshake_request
        @headers["Sec-WebSocket-Extensions"] = @extensions.generate_offer
        ["GET #{@pathname} HTTP/1.1", @headers.to_s, ""].join("\r\n")
      end

      def fail_handshake(message)
        message = "Error during WebSocket handshake: #{message}"
        @ready_state = 3
        emit(:error, ProtocolError.new(message))
        emit(:close, CloseEvent.new(ERRORS[:protocol_error], message))
      end

      def validate_handshake
        @status = @http.code
        @headers = Headers.new(@http.headers)
        return fail_handshake("Unexpected response code: #{@http.code}") unless @http.code == 101

        refusal = refusal_of_upgrade || refusal_of_key || refusal_of_protocol
        return fail_handshake(refusal) if refusal

        begin
          @extensions.activate(@headers["Sec-WebSocket-Extensions"])
        rescue ::WebSocket::Extensions::ExtensionError => e
          fail_handshake(e.message)
        end
      end

      def refusal_of_upgrade
        upgrade = @http["Upgrade"] || ""
        connection = @http["Connection"] || ""
        if upgrade == ""
          "'Upgrade' header is missing"
        elsif upgrade.downcase != "websocket"
          "'Upgrade' header value is not 'WebSocket'"
        elsif connection == ""
          "'Connection' header is missing"
        elsif !Driver.list(connection.downcase).include?("upgrade")
          "'Connection' header value is not 'Upgrade'"
        end
      end

      def refusal_of_key
        "Sec-WebSocket-Accept mismatch" unless @http["Sec-WebSocket-Accept"] == @accept
      end

      def refusal_of_protocol
        protocol = @http["Sec-WebSocket-Protocol"] || ""
        return if protocol == ""
        return "Sec-WebSocket-Protocol mismatch" unless @protocols.include?(protocol)

        @protocol = protocol
        nil
      end
    end
  end
end
