# frozen_string_literal: true

module WebSocket
  class Driver
    # Asks an HTTP proxy for a tunnel to the client's server.
    class Proxy
      include EventEmitter

      PORTS = Driver::PORTS

      # The proxy's answer.
      #
      # @return [Integer, nil], [Headers]
      attr_reader :status, :headers

      # @param client [Client]
      # @param origin [String] the URL of the proxy
      # @param options [Hash]
      def initialize(client, origin, options)
        super()
        @client = client
        @http = HTTP::Response.new
        @socket = client.instance_variable_get(:@socket)
        @origin = URI.parse(@socket.url)
        @url = URI.parse(origin)
        @options = options
        @state = 0

        @headers = Headers.new
        @headers["Host"] = Driver.host_header(@origin)
        @headers["Connection"] = "keep-alive"
        @headers["Proxy-Connection"] = "keep-alive"
        return unless @url.user

        @headers["Proxy-Authorization"] = "Basic #{[[@url.user, @url.password].join(":")].pack("m0")}"
      end

      # Adds a header to the request.
      #
      # @param name [String]
      # @param value [#to_s, nil]
      # @return [Boolean] false once it was sent
      def set_header(name, value)
        return false unless @state.zero?

        @headers[name] = value
        true
      end

      # Sends the request.
      #
      # @return [Boolean] false when that was done before
      def start
        return false unless @state.zero?

        @state = 1
        port = @origin.port || PORTS[@origin.scheme]
        request = ["CONNECT #{@origin.host}:#{port} HTTP/1.1", @headers.to_s, ""].join("\r\n")
        @socket.write(Driver.encode(request, Encoding::BINARY))
        true
      end

      # Takes bytes from the proxy; emits `:connect` or `:error`.
      #
      # @param chunk [String]
      def parse(chunk)
        return if @state == 2

        @http.parse(chunk)
        return unless @http.complete? || @http.error?

        @state = 2
        @status = @http.code
        @headers = Headers.new(@http.headers)
        if @http.complete? && @status == 200
          emit(:connect, ConnectEvent.new)
        else
          emit(:error, ProtocolError.new("Can't establish a connection to the server at #{@socket.url}"))
        end
      end
    end
  end
end
