# frozen_string_literal: true

module Protocol
  module WebSocket
    # Which class a frame of an opcode becomes.
    FRAMES = {
      0x0 => ContinuationFrame,
      0x1 => TextFrame,
      0x2 => BinaryFrame,
      0x8 => CloseFrame,
      0x9 => PingFrame,
      0xA => PongFrame,
    }.freeze

    MAXIMUM_ALLOWED_FRAME_SIZE = 2**63

    # Frames from and to a stream: an object with +read(length)+, +write(string)+, +flush+ and +close+.
    class Framer
      extend Wireloom::ProtocolWebSocket::Watch

      # @param stream [#read, #write, #flush, #close]
      # @param frames [Hash{Integer => Class}] the class of the frames of each opcode
      def initialize(stream, frames = FRAMES)
        @stream = stream
        @frames = frames
      end

      # Whether an `IO`, such as a socket, is read ahead: true unless it is set to false. Bytes behind a frame then wait in the
      # buffer of the `IO`, where `IO#read`, `IO#read_nonblock`, `IO#wait_readable` and `IO.select` find them. An event loop outside of
      # Ruby (epoll, nio4r) does not see that buffer: set it to false when such a loop decides when a frame is read.
      #
      # @param read_ahead [Boolean]
      attr_writer :read_ahead

      # Closes the stream.
      def close
        @stream.close
      end

      # Flushes the stream.
      def flush
        @stream.flush
      end

      # @!method read_frame(maximum_frame_size = MAXIMUM_ALLOWED_FRAME_SIZE)
      #   Reads one frame.
      #
      #   @param maximum_frame_size [Integer] the longest payload, in bytes
      #   @return [Frame] its payload is still masked
      #   @raise [EOFError] where the stream ends before the frame does
      #   @raise [ProtocolError] where the header breaks RFC 6455 §5.2, or the payload is longer

      # Writes the header, then the payload.
      #
      # @param frame [Frame]
      # @raise [ProtocolError] when the mask has not four bytes
      def write_frame(frame)
        mask = frame.mask
        raise ProtocolError, "Invalid mask length!" if mask && mask.bytesize != 4

        @stream.write(Wireloom::ProtocolWebSocket.header(frame.finished, frame.flags, frame.opcode, frame.length, mask))
        @stream.write(frame.payload)
      end
    end
  end
end
