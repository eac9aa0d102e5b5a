# frozen_string_literal: true

require "securerandom"

module Protocol
  module WebSocket
    # One frame (RFC 6455 §5.2). The payload is as on the wire: masked when +mask+ is set.
    #
    # Three instance variables, because that many lie inside the object: FIN, opcode and flags share +@header+. The native side
    # writes +@header+ and +@payload+ alone; the mask of what it reads waits in the upper half of +@header+ until it is asked for.
    class Frame
      include Comparable
      extend Wireloom::ProtocolWebSocket::Watch

      RSV1 = 0b0100
      RSV2 = 0b0010
      RSV3 = 0b0001
      RESERVED = RSV1 | RSV2 | RSV3

      OPCODE = 0

      # +mask+: +true+ takes a random key, a String is the key, +false+ leaves the payload unmasked.
      #
      # @param finished [Boolean] the FIN bit
      # @param payload [String, nil] as on the wire
      # @param flags [Integer] the reserved bits
      # @param opcode [Integer]
      # @param mask [Boolean, String]
      def initialize(finished = true, payload = nil, flags: 0, opcode: self.class::OPCODE, mask: false)
        @header = (finished ? 1 : 0) | ((opcode & 0xff) << 1) | ((flags & 0x7f) << 9)
        @mask = mask == true ? SecureRandom.bytes(4) : mask
        @payload = payload
      end

      # @return [String, nil] as on the wire: masked when there is a mask
      attr_accessor :payload

      # The 4-byte key that the payload is masked with, or +false+.
      #
      # @return [String, false]
      def mask
        return defined?(@mask) ? @mask : false if @header <= HEADER_BITS

        @mask = [@header >> 17].pack("N")
        @header &= HEADER_BITS
        @mask
      end

      # @param mask [String, false] the payload stays as it is
      def mask=(mask)
        @header &= HEADER_BITS
        @mask = mask
      end

      HEADER_BITS = 0xffff
      private_constant :HEADER_BITS

      # @return [Boolean] the FIN bit
      def finished
        @header & 1 == 1
      end
      alias finished? finished

      # @param finished [Boolean]
      def finished=(finished)
        @header = (@header & ~1) | (finished ? 1 : 0)
      end

      # @return [Boolean] whether more frames of the message follow
      def continued?
        @header & 1 == 0
      end

      # @return [Integer]
      def opcode
        (@header >> 1) & 0xff
      end

      # @param opcode [Integer]
      def opcode=(opcode)
        @header = (@header & ~0x1fe) | ((opcode & 0xff) << 1)
      end

      # The reserved bits: RSV1 | RSV2 | RSV3.
      #
      # @return [Integer]
      def flags
        (@header >> 9) & 0x7f
      end

      # @param flags [Integer]
      def flags=(flags)
        @header = (@header & ~0xfe00) | ((flags & 0x7f) << 9)
      end

      # @param value [Integer] RSV1, RSV2 or RSV3
      # @return [Boolean] whether it is set
      def flag?(value)
        flags & value != 0
      end

      # The payload's length in bytes; +nil+ without a payload.
      #
      # @return [Integer, nil]
      def length
        @payload&.bytesize
      end

      # @return [Array] the FIN bit, flags, opcode, mask and payload
      def to_ary
        [finished, flags, opcode, mask, @payload]
      end

      # @return [String]
      def inspect
        values = { finished: finished, flags: flags, opcode: opcode, mask: mask, payload: @payload }
        "#{Kernel.instance_method(:to_s).bind_call(self).chop} #{values.map { |name, value| "@#{name}=#{value.inspect}" }.join(", ")}>"
      end

      # @param other [Frame]
      # @return [Integer, nil]
      def <=>(other)
        to_ary <=> other.to_ary
      end

      # @return [Boolean] whether it is a Close, a ping or a pong
      def control?
        opcode & 0x8 != 0
      end

      # @return [Boolean] whether it begins a message
      def data?
        false
      end

      # Makes +data+ the payload, masked when there is a mask.
      #
      # @param data [String]
      # @return [self]
      # @raise [ProtocolError] when it is longer than 2^63 - 1 bytes
      def pack(data = "")
        length = data.bytesize
        raise ProtocolError, "Frame length #{length} bigger than allowed maximum!" if length.bit_length > 63

        mask = self.mask
        @payload = mask ? mask_xor(data, mask) : data
        self
      end

      # The payload without its mask.
      #
      # @return [String]
      def unpack
        mask = self.mask
        mask && !@payload.empty? ? mask_xor(@payload, mask) : @payload
      end

      # Hands itself to the method of +connection+ that receives such frames.
      #
      # @param connection [Connection]
      def apply(connection)
        connection.receive_frame(self)
      end

      private

      def mask_xor(data, mask)
        Wireloom::ProtocolWebSocket.mask(data, mask)
      end
    end

    # Text, or the beginning of it.
    class TextFrame < Frame
      OPCODE = 0x1

      # @return [true]
      def data?
        true
      end

      # The message of all its payloads.
      #
      # @param buffer [String]
      # @return [TextMessage]
      # @raise [ProtocolError] when they are no UTF-8
      def read_message(buffer)
        buffer = Wireloom::ProtocolWebSocket.text(buffer) or
          raise ProtocolError.new("invalid UTF-8 in text frame!", Error::INVALID_PAYLOAD)
        TextMessage.new(buffer)
      end

      # @param connection [Connection]
      def apply(connection)
        connection.receive_text(self)
      end
    end

    # Bytes, or the beginning of them.
    class BinaryFrame < Frame
      OPCODE = 0x2

      # @return [true]
      def data?
        true
      end

      # The message of all its payloads.
      #
      # @param buffer [String]
      # @return [BinaryMessage]
      def read_message(buffer)
        BinaryMessage.new(buffer)
      end

      # @param connection [Connection]
      def apply(connection)
        connection.receive_binary(self)
      end
    end

    # More of the message that another frame began.
    class ContinuationFrame < Frame
      OPCODE = 0x0

      # @param connection [Connection]
      def apply(connection)
        connection.receive_continuation(self)
      end
    end

    # The end, and why (RFC 6455 §5.5.1).
    class CloseFrame < Frame
      OPCODE = 0x8
      FORMAT = "na*"

      # The code and the reason; both +nil+ when the frame has no payload.
      #
      # @return [Array(Integer, String), Array(nil, nil)]
      # @raise [ProtocolError] when the code or the reason is invalid
      def unpack
        data = super
        return [nil, nil] if data.empty?
        raise ProtocolError, "Invalid close frame length!" if data.bytesize == 1

        code, reason = data.unpack(FORMAT)
        case code
        when 0..999, 1005..1006, 1015, 5000..0xffff
          raise ProtocolError, "Invalid close code!"
        when 1004, 1016..2999
          raise ProtocolError, "Reserved close code!"
        end
        reason.force_encoding(Encoding::UTF_8)
        raise ProtocolError.new("Invalid UTF-8 in close reason!", Error::INVALID_PAYLOAD) unless reason.valid_encoding?

        [code, reason]
      end

      # Without a code there is no payload, whatever the reason.
      #
      # @param code [Integer, nil]
      # @param reason [String, nil]
      # @return [self]
      def pack(code = nil, reason = nil)
        return super() unless code

        reason = reason.encode(Encoding::UTF_8) if reason && reason.encoding != Encoding::UTF_8
        super([code, reason].pack(FORMAT))
      end

      # The frame that answers this one.
      #
      # @param code [Integer, nil]
      # @param reason [String]
      # @return [CloseFrame]
      def reply(code = Error::NO_ERROR, reason = "")
        CloseFrame.new.tap { |frame| frame.pack(code, reason) }
      end

      # @param connection [Connection]
      def apply(connection)
        connection.receive_close(self)
      end
    end

    # A question that a Pong answers (RFC 6455 §5.5.2).
    class PingFrame < Frame
      OPCODE = 0x9

      # The Pong with the same payload.
      #
      # @param options [Hash] `mask:`, as for {Frame#initialize}
      # @return [PongFrame]
      def reply(**options)
        PongFrame.new(true, **options).pack(unpack || "")
      end

      # @param connection [Connection]
      def apply(connection)
        connection.receive_ping(self)
      end
    end

    # The answer to a Ping, or a sign of life (RFC 6455 §5.5.3).
    class PongFrame < Frame
      OPCODE = 0xA

      # @param connection [Connection]
      def apply(connection)
        connection.receive_pong(self)
      end
    end
  end
end
