# frozen_string_literal: true

require "zlib"

module WebSocket
  class Driver
    # Measures the inflated length of a compressed message before the extension permessage-deflate (RFC 7692) inflates it: the
    # extension knows no bound, and 64 KiB can become 64 MiB.
    #
    # A message that cannot exceed the bound at DEFLATE's highest ratio costs nothing; another is inflated once more here, a
    # chunk at a time, against the window that the messages before it left.
    class InflateGuard
      # DEFLATE makes at most this many bytes of one (258 from two bits and then some, zlib's own figure).
      RATIO_MAX = 1032
      WINDOW = 1 << 15
      TAIL = "\x00\x00\xff\xff".b.freeze

      # A guard, where permessage-deflate is the extension that inflates.
      #
      # @param sessions [Array<Array>] the extensions that were negotiated, each with its session
      # @param max_length [Integer] in bytes
      # @return [InflateGuard, nil]
      def self.for(sessions, max_length)
        new(max_length) if sessions.size == 1 && sessions[0][0].name == "permessage-deflate"
      end

      # @param max_length [Integer] in bytes
      def initialize(max_length)
        @max_length = max_length
        @window = String.new(encoding: Encoding::BINARY)
      end

      # Whether +message+, as it arrived, would inflate to more than the bound.
      #
      # @param message [Hybi::Message]
      # @return [Boolean]
      def too_large?(message)
        @compressed = message.rsv1
        return false unless @compressed
        return false if (message.data.bytesize + TAIL.bytesize) * RATIO_MAX <= @max_length

        inflates_beyond?(message.data)
      end

      # +message+ has been inflated: remembers what the next one may refer to.
      #
      # @param message [Hybi::Message]
      def inflated(message)
        return unless @compressed

        data = message.data
        if data.bytesize >= WINDOW
          @window = data.byteslice(-WINDOW, WINDOW).b
        else
          @window << data.b
          @window = @window.byteslice(-WINDOW, WINDOW) if @window.bytesize > 2 * WINDOW
        end
      end

      private

      def inflates_beyond?(data)
        inflate = Zlib::Inflate.new(-Zlib::MAX_WBITS)
        window = @window.bytesize > WINDOW ? @window.byteslice(-WINDOW, WINDOW) : @window
        inflate.set_dictionary(window) unless window.empty?
        length = 0
        [data, TAIL].each do |piece|
          inflate.inflate(piece) do |inflated|
            length += inflated.bytesize
            return true if length > @max_length
          end
        end
        false
      rescue Zlib::Error
        # For the extension to find, and to put into its own words.
        false
      ensure
        inflate&.reset
        inflate&.close
      end
    end
  end
end
