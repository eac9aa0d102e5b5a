# frozen_string_literal: true

module WebSocket
  class Driver
    # The draft of 2010 (draft-hixie-thewebsocketprotocol-76): draft 75 with keys in the handshake and a closing frame.
    class Draft76 < Draft75
      BODY_SIZE = 8
      # It goes into 32 bits.
      KEY_VALUE_MAX = 0xffffffff
      private_constant :KEY_VALUE_MAX

      # @param (see Driver#initialize)
      def initialize(socket, options = {})
        super
        @stage = -1
        @body = (@socket.env["rack.input"]&.read || "").b
        @headers.clear
        name_ends("Sec-WebSocket-")
      end

      # @return [String]
      def version
        "hixie-76"
      end

      # @return [Boolean] as for {Driver#start}
      def start
        return false unless super

        send_handshake_body
        true
      end

      # @param (see Driver#close)
      # @return [Boolean] false when it is closed
      def close(_reason = nil, _code = nil)
        return false if @ready_state == 3

        @socket.write([0xFF, 0x00].pack("C*")) if @ready_state == 1
        @ready_state = 3
        emit(:close, CloseEvent.new(nil, nil))
        true
      end

      private

      def handshake_response
        keys = %w[Key1 Key2].map do |name|
          @socket.env["HTTP_SEC_WEBSOCKET_#{name.upcase}"] or
            raise ProtocolError, "Missing required header: Sec-WebSocket-#{name}"
        end
        @key_values = keys.map do |key|
          number = key.scan(/[0-9]/).join
          spaces = key.count(" ")
          value, rest = number.to_i.divmod(spaces) unless number == "" || spaces.zero?
          raise ProtocolError, "Client sent invalid Sec-WebSocket-Key headers" unless rest == 0 && value <= KEY_VALUE_MAX

          value
        end
        ["HTTP/1.1 101 WebSocket Protocol Handshake", @headers.to_s, ""].join("\r\n")
      end

      def read_body
        @body << take(BODY_SIZE - @body.bytesize)
        send_handshake_body
      end

      def send_handshake_body
        return if @body.bytesize < BODY_SIZE

        head = @body.byteslice(0, BODY_SIZE)
        @socket.write(Digest::MD5.digest((@key_values + [head]).pack("N2a*")))
        @stage = 0
        open
        rest = @body.byteslice(BODY_SIZE..)
        parse(rest) unless rest.empty?
      end

      def parse_leading_byte(octet)
        return super unless octet == 0xFF

        @closing = true
        @length = 0
        @stage = 1
      end
    end
  end
end
