# frozen_string_literal: true

module WebSocket
  class Driver
    # A server's end that also reads the HTTP request, and then forwards to the driver for its version.
    class Server < Driver
      EVENTS = %w[open message error close ping pong].freeze

      # @param socket [#write]
      # @param options [Hash] as for {Driver.client}
      def initialize(socket, options = {})
        super
        @http = HTTP::Request.new
        @delegate = nil
      end

      # @return [Hash{String => Object}, nil] the request as Rack has it, once it has arrived
      def env
        @http.complete? ? @http.env : nil
      end

      # @return [String, nil] the URL of the request, once it has arrived
      def url
        return unless (request = env)

        query = request["QUERY_STRING"]
        url = "ws://#{request["HTTP_HOST"]}#{request["PATH_INFO"]}"
        query == "" ? url : "#{url}?#{query}"
      end

      # Not of blocks, which would stay in the Ractor that they were made in.
      %i[add_extension set_header start frame text binary ping close].each do |method|
        class_eval(<<~RUBY, __FILE__, __LINE__ + 1)
          def #{method}(*args, &block)
            @delegate ? @delegate.#{method}(*args, &block) : wait_for_request(:#{method}, args, block)
          end
        RUBY
      end

      # @return [String, nil] the subprotocol that was agreed on
      def protocol
        @delegate&.protocol
      end

      # @return [String, nil]
      def version
        @delegate&.version
      end

      # Takes a chunk of input, the request first, and calls the listeners of its events.
      #
      # @param chunk [String]
      def parse(chunk)
        return @delegate.parse(chunk) if @delegate
        return if @http.error?

        @http.parse(chunk)
        return fail_request("Invalid HTTP request") if @http.error?
        return unless @http.complete?

        @delegate = Driver.rack(self, @options)
        open
        EVENTS.each { |event| @delegate.on(event, Forward.new(self, event.to_sym)) }
        emit(:connect, ConnectEvent.new)
      end

      # For the driver that it forwards to.
      #
      # @param buffer [String]
      def write(buffer)
        @socket.write(Driver.encode(buffer, Encoding::BINARY))
      end

      private

      def wait_for_request(method, args, block)
        @queue << [method, args, block]
        true
      end

      def fail_request(message)
        emit(:error, ProtocolError.new(message))
        emit(:close, CloseEvent.new(Hybi::ERRORS[:protocol_error], message))
      end

      def open
        queue = @queue
        @queue = []
        queue.each { |method, args, block| @delegate.__send__(method, *args, &block) }
      end
    end
  end
end
