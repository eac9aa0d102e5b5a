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

    # Frames from and to a stream: whatever has +read(length)+, +write(string)+, +flush+ and +close+.
    class Framer
      extend Wireloom::ProtocolWebSocket::Watch

      def initialize(stream, frames = FRAMES)
        @stream = stream
        @frames = frames
      end

      def close
        @stream.close
      end

      def flush
        @stream.flush
      end

      # `read_frame(maximum_frame_size = MAXIMUM_ALLOWED_FRAME_SIZE)` is native. It reads no byte behind the frame, and raises
      # EOFError where the stream ends early and ProtocolError where the header breaks RFC 6455 §5.2.

      # Writes the header, then the payload.
      def write_frame(frame)
        mask = frame.mask
        raise ProtocolError, "Invalid mask length!" if mask && mask.bytesize != 4

        @stream.write(Wireloom::ProtocolWebSocket.header(frame.finished, frame.flags, frame.opcode, frame.length, mask))
        @stream.write(frame.payload)
      end
    end
  end
end
