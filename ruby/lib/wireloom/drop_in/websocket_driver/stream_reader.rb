# frozen_string_literal: true

module WebSocket
  class Driver
    # Bytes that arrive in chunks and are read by their number. The drivers here do without it; it is part of the original.
    class StreamReader
      MINIMUM_AUTOMATIC_PRUNE_OFFSET = 128

      # A reader without bytes.
      def initialize
        @buffer = String.new(encoding: Encoding::BINARY)
        @offset = 0
      end

      # Appends bytes.
      #
      # @param chunk [String, nil]
      def put(chunk)
        return unless chunk && chunk.bytesize.positive?

        @buffer << chunk.b
      end

      # The next +length+ bytes, or nil while there are fewer.
      #
      # @param length [Integer]
      # @return [String, nil]
      def read(length)
        return if @offset + length > @buffer.bytesize

        chunk = @buffer.byteslice(@offset, length)
        @offset += length
        prune if @offset > MINIMUM_AUTOMATIC_PRUNE_OFFSET
        chunk
      end

      # Every byte that is buffered. A byte counts as read when the block is called with it.
      #
      # @yieldparam octet [Integer]
      def each_byte
        prune
        @buffer.each_byte do |octet|
          @offset += 1
          yield octet
        end
      end

      private

      def prune
        @buffer = @buffer.byteslice(@offset, @buffer.bytesize - @offset)
        @offset = 0
      end
    end
  end
end
