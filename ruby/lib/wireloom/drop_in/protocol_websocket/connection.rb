# frozen_string_literal: true

module Protocol
  module WebSocket
    # A connection over a framer. Control frames are answered while reading; frames that are written leave with the next +flush+.
    #
    # +reader+ and +writer+ begin as the connection itself; extensions wrap them.
    class Connection
      extend Wireloom::ProtocolWebSocket::Watch

      # The most bytes that a message may have, unless +maximum_message_size:+ says otherwise.
      MAXIMUM_MESSAGE_SIZE = 1 << 30

      # +mask+: +true+ masks each frame with a key of its own, a String is the key. A client must mask (RFC 6455 §5.1).
      #
      # @param framer [Framer]
      # @param mask [Boolean, String, nil]
      # @param maximum_message_size [Integer, nil] nil for no limit
      # @param _options [Hash] those of subclasses
      def initialize(framer, mask: nil, maximum_message_size: MAXIMUM_MESSAGE_SIZE, **_options)
        @framer = framer
        @mask = mask
        @maximum_message_size = maximum_message_size
        @state = :open
        @frames = []
        @wireloom_size = 0
        @wireloom_utf8 = nil
        @wireloom_plain = nil
        @reserved = Frame::RESERVED
        @reader = self
        @writer = self
        wireloom_leave(0)
      end

      # @return [Framer]
      attr_reader :framer, :mask, :reserved, :maximum_message_size

      # The frames of a message that is not whole yet.
      #
      # @return [Array<Frame>]
      attr_accessor :frames

      # The objects that make messages of frames, and frames of messages.
      #
      # @return [#unpack_frames], [#pack_text_frame, #pack_binary_frame]
      attr_accessor :reader, :writer

      # Takes a reserved bit for an extension; frames may have it from now on.
      #
      # @param bit [Integer] Frame::RSV1, Frame::RSV2 or Frame::RSV3
      # @return [true]
      # @raise [ArgumentError] when it is taken
      def reserve!(bit)
        raise ArgumentError, "Unable to use #{bit}!" if (@reserved & bit).zero?

        @reserved &= ~bit
        true
      end

      # Flushes the stream.
      def flush
        @framer.flush
      end

      # Counts as open again.
      #
      # @return [self]
      def open!
        @state = :open
        self
      end

      # Sends a Close frame, as far as that is possible, and counts as closed.
      #
      # @param (see #send_close)
      # @return [self]
      def close!(...)
        return self if @state == :closed

        @state = :closed
        begin
          send_close(...)
        rescue StandardError
          # The peer has gone.
        end
        self
      end

      # @return [Boolean] whether the connection has ended
      def closed?
        @state == :closed
      end

      # Closes, and the stream too. Unread messages are lost.
      #
      # @param (see #send_close)
      def close(...)
        close!(...)
        @framer.close
      end

      # Ends writing; reading may go on.
      #
      # @param error [Exception, nil] makes the code 1011, and its message the reason
      def close_write(error = nil)
        error ? send_close(Error::INTERNAL_ERROR, error.message) : send_close
      rescue StandardError
        @state = :closed
      end

      # Ends writing, and reads until the peer has closed too.
      #
      # @raise [ProtocolError, EOFError] as for {#read_frame}
      def shutdown
        send_close unless closed?
        nil while read_frame
      end

      # Reads one frame and applies it; +nil+ once closed.
      #
      # @yieldparam frame [Frame] before it is applied
      # @return [Frame, nil]
      # @raise [ClosedError] for a Close frame with another code than 1000
      # @raise [ProtocolError] when the peer breaks a rule; the connection is closed by then
      # @raise [EOFError] when the stream ends
      def read_frame(&block)
        return nil if closed?

        wireloom_closing_on_error { wireloom_accept(@framer.read_frame, &block) }
      end

      # Writes a frame, without a flush.
      #
      # @param frame [Frame]
      # @return [Frame] the same
      def write_frame(frame)
        @framer.write_frame(frame)
        frame
      end

      # Begins a message.
      #
      # @param frame [TextFrame]
      # @raise [ProtocolError] within another message, or when the message is too long or no UTF-8
      def receive_text(frame)
        raise ProtocolError, "Received text, but expecting continuation!" unless @frames.empty?

        wireloom_begin_message(frame)
      end

      # Begins a message.
      #
      # @param frame [BinaryFrame]
      # @raise [ProtocolError] as for {#receive_text}
      def receive_binary(frame)
        raise ProtocolError, "Received binary, but expecting continuation!" unless @frames.empty?

        wireloom_begin_message(frame)
      end

      # Continues a message.
      #
      # @param frame [ContinuationFrame]
      # @raise [ProtocolError] outside of a message, or as for {#receive_text}
      def receive_continuation(frame)
        raise ProtocolError, "Received unexpected continuation!" if @frames.empty?

        @frames << frame
        wireloom_measure(frame)
        wireloom_validate(frame) if @wireloom_utf8
      end

      # Answers with the same code and reason.
      #
      # @param frame [CloseFrame]
      # @raise [ClosedError] for another code than 1000
      # @raise [ProtocolError] when the code or the reason is invalid
      def receive_close(frame)
        code, reason = frame.unpack
        close!(code, reason)
        raise ClosedError.new(reason, code) if code && code != Error::NO_ERROR
      end

      # Sends a ping, without a flush.
      #
      # @param data [String] of up to 125 bytes
      # @raise [ProtocolError] when the connection is closed
      def send_ping(data = "")
        raise ProtocolError, "Cannot send ping in state #{@state}" if closed?

        write_frame(PingFrame.new(mask: @mask).pack(data))
      end

      # Answers with a pong, which leaves with the next flush.
      #
      # @param frame [PingFrame]
      # @raise [ProtocolError] when the connection is closed
      def receive_ping(frame)
        raise ProtocolError, "Cannot receive ping in state #{@state}" if closed?

        write_frame(frame.reply(mask: @mask))
      end

      # Does nothing: for subclasses.
      #
      # @param frame [PongFrame]
      def receive_pong(frame)
      end

      # A frame of no known kind.
      #
      # @param frame [Frame]
      # @raise [ProtocolError]
      def receive_frame(frame)
        raise ProtocolError, "Unhandled frame: #{frame}"
      end

      # The frame of a text message.
      #
      # @param buffer [String]
      # @param _options [Hash] those of writers around this one
      # @return [TextFrame]
      def pack_text_frame(buffer, **_options)
        TextFrame.new(mask: @mask).tap { |frame| frame.pack(buffer) }
      end

      # Sends a text message, without a flush.
      #
      # @param buffer [String]
      # @param options [Hash] for the writer, such as `compress: false`
      # @return [Frame]
      def send_text(buffer, **options)
        wireloom_send { @writer.pack_text_frame(buffer, **options) }
      end

      # The frame of a binary message.
      #
      # @param buffer [String]
      # @param _options [Hash] those of writers around this one
      # @return [BinaryFrame]
      def pack_binary_frame(buffer, **_options)
        BinaryFrame.new(mask: @mask).tap { |frame| frame.pack(buffer) }
      end

      # Sends a binary message, without a flush.
      #
      # @param buffer [String]
      # @param options [Hash] for the writer, such as `compress: true`
      # @return [Frame]
      def send_binary(buffer, **options)
        wireloom_send { @writer.pack_binary_frame(buffer, **options) }
      end

      # Begins the closing handshake. The connection is closed when the peer has answered.
      #
      # @param code [Integer, nil]
      # @param reason [String] of up to 123 bytes
      def send_close(code = Error::NO_ERROR, reason = "")
        frame = CloseFrame.new(mask: @mask)
        frame.pack(code, reason)
        write_frame(frame)
        flush
      end

      # A String leaves as text when it is UTF-8, else as bytes.
      #
      # @param message [String, Message]
      # @param options [Hash] for the writer
      # @raise [ArgumentError] for another object
      def write(message, **options)
        case message
        when String
          message.encoding == Encoding::UTF_8 ? send_text(message, **options) : send_binary(message, **options)
        when Message
          message.send(self, **options)
        else
          raise ArgumentError, "Unsupported message type: #{message}"
        end
      end

      # The bytes of a message; +frames+ are all of its frames.
      #
      # @param frames [Array<Frame>]
      # @return [String]
      def unpack_frames(frames)
        frames.size == 1 ? frames[0].unpack : frames.map(&:unpack).join
      end

      # @!method read(**options)
      #   Flushes, then reads one message. Control frames are answered meanwhile. While nothing that it would call has been
      #   overridden, a message in one frame is read without those calls.
      #
      #   @param options [Hash] for the reader
      #   @return [TextMessage, BinaryMessage, nil] nil once closed
      #   @raise [ClosedError] for a Close frame with another code than 1000
      #   @raise [ProtocolError] when the peer breaks a rule; the connection is closed by then
      #   @raise [EOFError] when the stream ends

      private

      # Methods that the original does not have begin with `wireloom_`, which no subclass uses.

      # Whether a message in one frame may be read without the methods that would otherwise be called, remembered for as long
      # as nothing is overridden anew, with the longest message as far as that fits beside it.
      def wireloom_plain?
        epoch = Wireloom::ProtocolWebSocket.epoch
        plain = SHORTCUT.all? { |name| self.class.instance_method(name).owner == Connection } &&
                @framer.is_a?(Framer) && %i[read_frame flush].all? { |name| @framer.class.instance_method(name).owner == Framer } &&
                @framer.instance_variable_get(:@frames).equal?(FRAMES)
        longest = [@maximum_message_size || PLAIN_LENGTHS, PLAIN_LENGTHS].min
        @wireloom_plain = plain ? epoch << PLAIN_LENGTHS.bit_length | longest : nil
        plain
      end

      PLAIN_LENGTHS = (1 << 30) - 1
      private_constant :PLAIN_LENGTHS

      SHORTCUT = %i[read_frame receive_text receive_binary unpack_frames closed?].freeze
      private_constant :SHORTCUT

      # Applies a frame that was read.
      def wireloom_accept(frame)
        flags = frame.flags
        # RFC 7692 §6: RSV1 marks the first frame of a message, whichever extension reserved it.
        late = flags & Frame::RSV1 != 0 && (frame.control? || frame.opcode.zero?)
        raise ProtocolError, "Received frame with reserved flags set!" if late || flags & @reserved != 0

        yield frame if block_given?
        frame.apply(self)
        frame
      end

      # Writes the frame of a message, which the block makes. The peer does not get it when an exception ends that.
      def wireloom_send
        frame = write_frame(yield)
        sent = true
        frame
      ensure
        @writer.wireloom_forget if !sent && @writer.respond_to?(:wireloom_forget)
      end

      # Runs the block; an exception closes the connection.
      def wireloom_closing_on_error
        yield
      rescue StandardError => error
        close(error.is_a?(ProtocolError) ? error.code : Error::PROTOCOL_ERROR, error.message)
        raise
      end

      # The rest of `read` where the fast path ends: at +frame+, which was read and not applied, or anywhere without one.
      def wireloom_read_on(frame, **options)
        wireloom_closing_on_error { wireloom_accept(frame) } if frame
        while frame || read_frame
          frame = nil
          next unless @frames.last&.finished?

          frames = @frames
          @frames = []
          return frames.first.read_message(@reader.unpack_frames(frames, **options))
        end
      rescue ProtocolError => error
        close(error.code, error.message)
        raise
      end

      # The same when reading the frame raised, or, +whole+, when its text was invalid.
      def wireloom_read_failed(error, whole)
        wireloom_closing_on_error { raise error } unless whole
        raise error
      rescue ProtocolError
        close(error.code, error.message)
        raise
      end

      # The first frame of a message.
      def wireloom_begin_message(frame)
        @frames << frame
        @wireloom_size = 0
        @wireloom_utf8 = nil
        wireloom_measure(frame)
        return unless frame.is_a?(TextFrame) && frame.continued? && @reader.equal?(self)

        @wireloom_utf8 = Wireloom::ProtocolWebSocket::Utf8.new
        wireloom_validate(frame)
      end

      # Framers that read by other means than the gem's find out only here how long a frame is.
      def wireloom_measure(frame)
        @wireloom_size += frame.length || 0
        if @maximum_message_size && @wireloom_size > @maximum_message_size
          raise ProtocolError.new("Message is longer than #{@maximum_message_size} bytes!", Error::MESSAGE_TOO_LARGE)
        end
        if @frames.size > FRAGMENTS_SPARE + (@wireloom_size / FRAGMENT_LENGTH)
          raise ProtocolError.new("Message has too many fragments!", Error::MESSAGE_TOO_LARGE)
        end

        wireloom_leave(frame.finished? ? 0 : @wireloom_size)
      end

      # Sets the framer's limit for the next frame of a message that has +size+ bytes so far: it refuses a longer one by its header.
      def wireloom_leave(size)
        return unless @maximum_message_size && @framer.is_a?(Framer)

        @framer.instance_variable_set(:@wireloom_message_max, @maximum_message_size)
        @framer.instance_variable_set(:@wireloom_message_left, @maximum_message_size - size)
      end

      # A message may have +FRAGMENTS_SPARE+ fragments of any length, and one more for each +FRAGMENT_LENGTH+ bytes, because each is an
      # object. As in the core.
      FRAGMENTS_SPARE = 16_384
      FRAGMENT_LENGTH = 16
      private_constant :FRAGMENTS_SPARE, :FRAGMENT_LENGTH

      # Fragmented text is refused in the fragment that is invalid, not at its end.
      def wireloom_validate(frame)
        return if @wireloom_utf8.push(frame.payload || "", frame.mask)

        error = ProtocolError.new("invalid UTF-8 in text frame!", Error::INVALID_PAYLOAD)
        wireloom_drain(error) unless frame.finished?
        raise error
      end

      # How long a peer that was refused in the midst of a message may go on writing it, in seconds.
      DRAIN_TIMEOUT = 0.5
      private_constant :DRAIN_TIMEOUT

      # Sends the Close, and reads from a socket until the peer has ended its side, or for a while: a peer that is still writing the message
      # must not find the connection reset before it reads the Close. Other streams, such as TLS, cannot be read for a limited time.
      def wireloom_drain(error)
        close!(error.code, error.message)
        stream = @framer.instance_variable_get(:@stream)
        return unless stream.is_a?(IO)

        deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + DRAIN_TIMEOUT
        chunk = +""
        while (rest = deadline - Process.clock_gettime(Process::CLOCK_MONOTONIC)).positive? && stream.wait_readable(rest)
          break unless stream.read_nonblock(64 << 10, chunk, exception: false)
        end
      rescue StandardError
        # The peer has gone: nothing is left to be read.
      end
    end
  end
end
