# frozen_string_literal: true

module WebSocket
  class Driver
    # The draft of 2009 (draft-hixie-thewebsocketprotocol-75): text between 00 and FF.
    #
    #   stage -1  the handshake's body is awaited (draft 76)
    #   stage  0  a frame begins
    #   stage  1  the length of a frame that has one
    #   stage  2  text up to FF, or a number of bytes to be skipped
    class Draft75 < Driver
      TERMINATOR = "\xFF".b.freeze
      private_constant :TERMINATOR

      # @param (see Driver#initialize)
      def initialize(socket, options = {})
        super
        @stage = 0
        @closing = false
        @skip = nil
        @buffer = String.new(encoding: Encoding::BINARY)
        @input = String.new(encoding: Encoding::BINARY)
        @at = 0
        name_ends("WebSocket-")
      end

      # @return [String]
      def version
        "hixie-75"
      end

      # @param (see Driver#close)
      # @return [Boolean] false when it is closed
      def close(_reason = nil, _code = nil)
        return false if @ready_state == 3

        @ready_state = 3
        emit(:close, CloseEvent.new(nil, nil))
        true
      end

      # Takes a chunk of input, and calls the listeners of its events.
      #
      # @param chunk [String]
      def parse(chunk)
        return if @ready_state > 1

        # Input behind a message whose listener raised is read by the next call.
        @input = @input.byteslice(@at..) << chunk.b
        @at = 0
        while @at < @input.bytesize && @ready_state <= 1
          case @stage
          when -1 then read_body
          when 0 then parse_leading_byte(take(1).ord)
          when 1 then read_length(take(1).ord)
          else @skip ? skip : read_text
          end
        end
      end

      # Sends text.
      #
      # @param buffer [String]
      # @param type [Object, nil] not used
      # @param error_type [Object, nil] not used
      # @return [true]
      def frame(buffer, type = nil, error_type = nil)
        return queue([buffer, type, error_type]) if @ready_state.zero?

        @socket.write([0x00, buffer, 0xFF].pack("CA*C"))
        true
      end

      private

      def name_ends(prefix)
        @headers["Upgrade"] = "WebSocket"
        @headers["Connection"] = "Upgrade"
        @headers["#{prefix}Origin"] = @socket.env["HTTP_ORIGIN"]
        @headers["#{prefix}Location"] = @socket.url
      end

      def handshake_response
        ["HTTP/1.1 101 Web Socket Protocol Handshake", @headers.to_s, ""].join("\r\n")
      end

      def parse_leading_byte(octet)
        if octet.anybits?(0x80)
          @length = 0
          @stage = 1
        else
          @skip = nil
          @buffer = String.new(encoding: Encoding::BINARY)
          @stage = 2
        end
      end

      def read_length(octet)
        @length = (octet & 0x7F) + (128 * @length)
        # A length of many bytes stays a small number: one above the limit is refused.
        return close if @length > @max_length

        if @closing && @length.zero?
          close
        elsif octet.nobits?(0x80)
          @skip = @length
          @stage = @length.zero? ? 0 : 2
        end
      end

      # Up to +length+ bytes of the input.
      def take(length)
        bytes = @input.byteslice(@at, length)
        @at += bytes.bytesize
        bytes
      end

      def skip
        @skip -= take(@skip).bytesize
        @stage = 0 if @skip.zero?
      end

      def read_text
        ends = @input.index(TERMINATOR, @at)
        @buffer << take((ends || @input.bytesize) - @at)
        return close if @buffer.bytesize > @max_length
        return unless ends

        take(1)
        @stage = 0
        text = @buffer.force_encoding(Encoding::UTF_8).scrub
        @buffer = String.new(encoding: Encoding::BINARY)
        emit(:message, MessageEvent.new(text))
      end
    end
  end
end
