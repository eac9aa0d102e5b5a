# frozen_string_literal: true

module WebSocket
  # The HTTP/1.1 of the handshake: heads of requests and responses.
  module HTTP
    # The name of a header, from a name in any spelling or a variable of CGI.
    #
    # @param name [#to_s]
    # @return [String]
    def self.normalize_header(name)
      name.to_s.strip.downcase.sub(/\Ahttp_/, "").tr("_", "-")
    end

    # Parses a start line and header lines, which may arrive in chunks. The bytes behind them are the body.
    module Headers
      # The most bytes that the lines may have together.
      MAX_REQUEST_SIZE = 32_768
      CR = 0x0D
      LF = 0x0A

      # RFC 9110 §5.6.2: a name is a token. Blanks around the value are stripped, not matched: a regular expression that looks
      # for their end at each of them takes the square of their number.
      HEADER_LINE = /\A([!#$%&'*+\-.^_`|~0-9a-z]+):([\t\x20-\x7e]*)\z/i

      # @return [Hash{String => String}] by names in lower case
      attr_reader :headers

      # A parser before the first byte.
      def initialize
        @buffer = String.new(encoding: Encoding::BINARY)
        @env = {}
        @headers = {}
        @length = 0
        @stage = 0
      end

      # @return [Boolean] whether the head is complete
      def complete?
        @stage == 2
      end

      # @return [Boolean] whether the head breaks the grammar, or is too long
      def error?
        @stage == -1
      end

      # Takes bytes.
      #
      # @param chunk [String]
      def parse(chunk)
        return if @stage == -1

        @buffer << chunk.b
        while @stage.between?(0, 1) && (eol = @buffer.index("\n"))
          take_line(@buffer.slice!(0..eol))
        end
        error if @stage.between?(0, 1) && @length + @buffer.bytesize > MAX_REQUEST_SIZE
        @env["rack.input"] = StringIO.new(@buffer.dup)
      end

      private

      def take_line(line)
        @length += line.bytesize
        return error if @length > MAX_REQUEST_SIZE

        line.chomp!
        if line.empty?
          complete if @stage == 1
        elsif @stage.zero? ? start_line(line) : header_line(line)
          @stage = 1
        else
          error
        end
      end

      def complete
        @stage = 2
      end

      def error
        @stage = -1
      end

      def header_line(line)
        match = HEADER_LINE.match(line)
        return false unless match

        key = HTTP.normalize_header(match[1])
        value = match[2].strip
        @headers[key] = @headers.key?(key) ? "#{@headers[key]}, #{value}" : value
        true
      end
    end

    # A request, as a Rack environment.
    class Request
      include Headers

      REQUEST_LINE = %r{\A(OPTIONS|GET|HEAD|POST|PUT|DELETE|TRACE|CONNECT) ([\x21-\x7e]+) (HTTP/[0-9]+\.[0-9]+)\z}
      REQUEST_TARGET = /\A(.*?)(\?(.*))?\z/
      RESERVED_HEADERS = %w[content-length content-type].freeze

      # @return [Hash{String => Object}] of Rack
      attr_reader :env

      private

      def start_line(line)
        match = REQUEST_LINE.match(line)
        return false unless match

        target = REQUEST_TARGET.match(match[2])
        @env = {
          "REQUEST_METHOD" => match[1],
          "SCRIPT_NAME" => "",
          "PATH_INFO" => target[1],
          "QUERY_STRING" => target[3] || ""
        }
        true
      end

      def complete
        super
        @headers.each do |name, value|
          rack_name = name.upcase.tr("-", "_")
          rack_name = "HTTP_#{rack_name}" unless RESERVED_HEADERS.include?(name)
          @env[rack_name] = value
        end
        name_server(@env["HTTP_HOST"]) if @env["HTTP_HOST"]
      end

      def name_server(host)
        uri = URI.parse("http://#{host}")
        @env["SERVER_NAME"] = uri.host
        @env["SERVER_PORT"] = uri.port.to_s
      rescue URI::Error
        error
      end
    end

    # A response.
    class Response
      include Headers

      STATUS_LINE = %r{\A(HTTP/[0-9]+\.[0-9]+) ([0-9]{3})(?: ([\x20-\x7e]*))?\z}

      # @return [Integer, nil] the status
      attr_reader :code

      # @param name [#to_s] of a header
      # @return [String, nil]
      def [](name)
        @headers[HTTP.normalize_header(name)]
      end

      # @return [String] the bytes behind the head
      def body
        @buffer.dup
      end

      private

      def start_line(line)
        match = STATUS_LINE.match(line)
        return false unless match

        @code = match[2].to_i
        true
      end
    end
  end
end
