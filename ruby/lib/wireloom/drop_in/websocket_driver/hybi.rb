# frozen_string_literal: true

require "monitor"
require_relative "core_deflate"
require_relative "inflate_guard"

module WebSocket
  class Driver
    # RFC 6455, the server's end; the client's builds on it.
    class Hybi < Driver
      # A message as extensions get it.
      class Message
        # @return [Boolean], [Integer], [String]
        attr_accessor :rsv1, :rsv2, :rsv3, :opcode, :data

        # A message without data.
        def initialize
          @rsv1 = @rsv2 = @rsv3 = false
          @opcode = nil
          @data = String.new(encoding: Encoding::BINARY)
        end

        # Appends a frame.
        #
        # @param frame [Frame]
        def <<(frame)
          @rsv1 ||= frame.rsv1
          @rsv2 ||= frame.rsv2
          @rsv3 ||= frame.rsv3
          @opcode ||= frame.opcode
          @data << frame.payload
        end
      end

      # A frame as extensions get it.
      class Frame
        # @return [Object]
        attr_accessor :final, :rsv1, :rsv2, :rsv3, :opcode, :masked, :masking_key, :length_bytes, :length, :payload
      end

      GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
      VERSION = "13"

      BYTE = 0b11111111
      FIN = MASK = 0b10000000
      RSV1 = 0b01000000
      RSV2 = 0b00100000
      RSV3 = 0b00010000
      OPCODE = 0b00001111
      LENGTH = 0b01111111

      OPCODES = { continuation: 0, text: 1, binary: 2, close: 8, ping: 9, pong: 10 }.freeze
      OPCODE_CODES = OPCODES.values.freeze
      MESSAGE_OPCODES = OPCODES.values_at(:continuation, :text, :binary).freeze
      OPENING_OPCODES = OPCODES.values_at(:text, :binary).freeze
      CONTROL_LENGTH = 125
      # The longest that RFC 6455 §5.2 has words for.
      LENGTH_MAX = (1 << 63) - 1
      RANDOMNESS = SecureRandom.singleton_class

      ERRORS = {
        normal_closure: 1000,
        going_away: 1001,
        protocol_error: 1002,
        unacceptable: 1003,
        encoding_error: 1007,
        policy_violation: 1008,
        too_large: 1009,
        extension_error: 1010,
        unexpected_condition: 1011
      }.freeze
      ERROR_CODES = ERRORS.values.freeze
      DEFAULT_ERROR_CODE = 1000
      MIN_RESERVED_ERROR = 3000
      MAX_RESERVED_ERROR = 4999
      PACK_FORMATS = { 2 => "S>", 8 => "Q>" }.freeze

      private_constant :CONTROL_LENGTH, :LENGTH_MAX, :RANDOMNESS

      # The value of Sec-WebSocket-Accept (RFC 6455 §4.2.2).
      #
      # @param key [String]
      # @return [String]
      def self.generate_accept(key)
        [Digest::SHA1.digest(key + GUID)].pack("m0")
      end

      # @param (see Driver#initialize)
      def initialize(socket, options = {})
        super
        @extensions = ::WebSocket::Extensions.new
        # nil, or what messages go through: :core or :extensions.
        @extended = nil
        @masking = options[:masking]
        @require_masking = options[:require_masking]
        @protocols = options[:protocols] || []
        @protocols = Driver.list(@protocols) if @protocols.is_a?(String)
        @ping_callbacks = {}
        @codec = Codec.new(MessageEvent, @max_length.clamp(0, LENGTH_MAX), @require_masking ? true : false, refuse_masking?,
                           @binary_data_format == :array)
        return unless @socket.respond_to?(:env)

        offered = @socket.env["HTTP_SEC_WEBSOCKET_PROTOCOL"]
        offered = Driver.list(offered) if offered.is_a?(String)
        @protocol = offered.find { |name| @protocols.include?(name) } if offered
      end

      # @return [String]
      def version
        "hybi-#{VERSION}"
      end

      # @param extension [Object] of the framework websocket-extensions
      # @return [true]
      # @raise [TypeError] when it is none
      def add_extension(extension)
        @extensions.add(extension)
        true
      end

      # Takes a chunk of input, and calls the listeners of its events. An exception of a listener is raised from here; the
      # next call continues behind the message that it was called for.
      #
      # @param chunk [String]
      # @raise [TypeError] for another object
      def parse(chunk)
        @codec.parse(chunk, self)
      end

      # Sends a binary message.
      #
      # @param message [String, Array<Integer>]
      # @return [Boolean] whether it was sent or queued
      def binary(message)
        frame(message, :binary)
      end

      # Sends a ping; the block is called when a pong with the same data comes back.
      #
      # @param message [String] of up to 125 bytes
      # @return [Boolean] whether it was sent or queued
      def ping(message = "", &callback)
        @ping_callbacks[message] = callback if callback
        frame(message, :ping)
      end

      # Sends a pong.
      #
      # @param message [String] of up to 125 bytes
      # @return [Boolean] whether it was sent or queued
      def pong(message = "")
        frame(message, :pong)
      end

      # Begins the closing handshake; before the handshake of the connection it closes at once.
      #
      # @param reason [String, nil] cut after 123 bytes
      # @param code [Integer, nil]
      # @return [Boolean] false when that was done before
      def close(reason = nil, code = nil)
        reason ||= ""
        code ||= ERRORS[:normal_closure]

        if @ready_state <= 0
          @ready_state = 3
          emit(:close, CloseEvent.new(code, reason))
          true
        elsif @ready_state == 1
          frame(reason, :close, code)
          # Another thread may have had the peer's Close meanwhile.
          @ready_state = 2 if @ready_state == 1
          true
        else
          false
        end
      end

      # Sends a frame: text for a String, binary for one in the encoding BINARY and for an Array of bytes, or +type+.
      #
      # @param buffer [String, Array<Integer>]
      # @param type [Symbol, nil] of OPCODES
      # @param code [Integer, nil] before the data
      # @return [Boolean] whether it was sent or queued
      def frame(buffer, type = nil, code = nil)
        return queue([buffer, type, code]) if @ready_state <= 0
        return false unless @ready_state == 1

        binary = buffer.is_a?(Array) || buffer.encoding == Encoding::BINARY
        buffer = Driver.encode(buffer, binary ? nil : Encoding::UTF_8)
        opcode = OPCODES.fetch(type || (binary ? :binary : :text))
        if @extended && opcode < OPCODES[:close]
          return send_extended(opcode, buffer, code)
        else
          if opcode >= OPCODES[:close] && buffer.bytesize > CONTROL_LENGTH - (code ? 2 : 0)
            # RFC 6455 §5.5: control frames carry 125 bytes. A reason is truncated; the data of a ping has to come back complete.
            return false unless type == :close

            buffer = buffer.byteslice(0, CONTROL_LENGTH - (code ? 2 : 0)).scrub("")
          end
          bytes = @codec.frame(opcode, buffer, code, masking_key)
          return send_close(bytes) if type == :close && @sending

          @socket.write(bytes)
        end
        true
      rescue ::WebSocket::Extensions::ExtensionError => e
        fail(:extension_error, e.message)
      end

      private

      # The key for a frame that is sent: true for one of the codec's, false for none. A program that replaces
      # `SecureRandom.random_bytes`, as tests do, provides the keys.
      def masking_key
        return false unless @masking

        RANDOMNESS.method_defined?(:random_bytes, false) ? SecureRandom.random_bytes(4) : true
      end

      # True for a client: servers do not mask (RFC 6455 §5.1).
      def refuse_masking?
        false
      end

      # The codec calls these, and `fail`.

      # A message of a driver whose `emit` is overridden.
      def receive_message(payload)
        emit(:message, MessageEvent.new(payload))
      end

      def receive_ping(payload)
        frame(payload, :pong)
        emit(:ping, PingEvent.new(payload))
      end

      def receive_pong(payload)
        message = payload.force_encoding(Encoding::UTF_8)
        callback = @ping_callbacks.delete(message)
        callback&.call
        emit(:pong, PongEvent.new(message))
      end

      def receive_close(payload)
        code = payload.unpack1(PACK_FORMATS[2]) if payload.bytesize >= 2
        reason = (payload.byteslice(2..) || +"").force_encoding(Encoding::UTF_8)
        valid = payload.empty? || ERROR_CODES.include?(code) ||
                (code && code.between?(MIN_RESERVED_ERROR, MAX_RESERVED_ERROR))
        code = ERRORS[:protocol_error] unless valid && reason.valid_encoding?
        shutdown(code || DEFAULT_ERROR_CODE, reason)
      end

      # A message goes through the extensions that were negotiated.
      def receive_extended(data, opcode, rsv)
        message = Message.new
        message.opcode = opcode
        message.rsv1 = rsv.anybits?(4)
        message.rsv2 = rsv.anybits?(2)
        message.rsv3 = rsv.anybits?(1)
        message.data = data
        return fail(:too_large, "WebSocket frame length too large") if @inflate_guard&.too_large?(message)

        begin
          message = @extensions.process_incoming_message(message)
        rescue ::WebSocket::Extensions::ExtensionError => e
          return fail(:extension_error, e.message)
        end
        return fail(:too_large, "WebSocket frame length too large") if message.data.bytesize > @max_length

        @inflate_guard&.inflated(message)
        payload = deliverable(message)
        return fail(:encoding_error, "Could not decode a text frame as UTF-8") unless payload

        emit(:message, MessageEvent.new(payload))
      end

      # The data as the application wants it, or nil for text that is not UTF-8.
      def deliverable(message)
        if message.opcode == OPCODES[:text]
          text = Driver.encode(message.data, Encoding::UTF_8)
          text if text.valid_encoding?
        else
          @binary_data_format == :array ? message.data.bytes : Driver.encode(message.data, Encoding::BINARY)
        end
      end

      # A compressed message refers to those before it: they leave in that order, whichever threads send them.
      def send_extended(opcode, data, code)
        data = Driver.encode(code ? [code].pack(PACK_FORMATS[2]) + data.b : data, Encoding::BINARY)
        nested, events = @sending.mon_owned?, []
        lost = false
        sent = @sending.synchronize do
          # Another thread may have closed while this one waited,
          next false unless @ready_state == 1

          lost = @extended == :core
          bytes = @extended == :core ? @codec.deflated_frame(opcode, data, masking_key) : extended_frame(opcode, data)
          # or while it compressed, which lets other threads run.
          next false unless @ready_state == 1

          @socket.write(bytes)
          lost = false
          true
        ensure
          @codec.forget if lost
          events, @events_behind = @events_behind, events unless nested
        end
      ensure
        begin
          end_messages(events || [])
        rescue StandardError
          # The error that ended the message goes first.
          raise unless sent.nil?
        end
      end

      def send_close(bytes)
        return false unless @ready_state == 1

        @ready_state = 2
        @close_behind << bytes
        write_close
        true
      end

      # Writes Close behind the message that is being written, if there is one: the thread that writes that does it when it has finished.
      # Never waits, because a signal handler may not, and because `write` of the socket may wait for a lock of this thread's.
      def write_close
        bytes = @close_behind.shift unless @sending.mon_locked?
        @socket.write(bytes) if bytes
      end

      # Emits the events, each with the arguments of `emit`, behind Close. Not so while another thread is writing a message: that may last until
      # a listener closes the socket, after which Close cannot be written, and the other thread may hold locks that listeners take.
      def end_messages(events)
        write_close
      ensure
        events.each { |event| emit(*event) }
      end

      def extended_frame(opcode, data)
        message = Message.new
        message.opcode = opcode
        message.data = data
        message = @extensions.process_outgoing_message(message)
        rsv = (message.rsv1 ? RSV1 : 0) | (message.rsv2 ? RSV2 : 0) | (message.rsv3 ? RSV3 : 0)
        @codec.frame(message.opcode | rsv, message.data, nil, masking_key)
      end

      # The handshake is over: lets messages through the extensions that it negotiated, if any.
      def extend_codec
        sessions = @extensions.instance_variable_get(:@sessions)
        return if sessions.nil? || sessions.empty?

        frame = Frame.new
        frame.opcode = OPCODES[:text]
        allowed = { rsv1: 4, rsv2: 2, rsv3: 1 }.sum do |name, bit|
          frame.rsv1 = frame.rsv2 = frame.rsv3 = false
          frame.public_send("#{name}=", true)
          @extensions.valid_frame_rsv?(frame) ? bit : 0
        end
        @codec.extend(allowed)
        @sending = Monitor.new
        # Pending until the end of the current message: the Close frame, and the events received on the thread that writes the message.
        @close_behind, @events_behind = [], []
        if (parameters = CoreDeflate.parameters(sessions))
          @codec.deflate(*parameters)
          @extended = :core
        else
          @extended = :extensions
          @inflate_guard = InflateGuard.for(sessions, @max_length)
        end
      end

      def open
        extend_codec
        super
      end

      def handshake_response
        env = @socket.env
        version = env["HTTP_SEC_WEBSOCKET_VERSION"]
        key = env["HTTP_SEC_WEBSOCKET_KEY"]
        raise ProtocolError, "Unsupported WebSocket version: #{VERSION}" unless version == VERSION
        raise ProtocolError, "Missing handshake request header: Sec-WebSocket-Key" unless key

        @headers["Upgrade"] = "websocket"
        @headers["Connection"] = "Upgrade"
        @headers["Sec-WebSocket-Accept"] = Hybi.generate_accept(key)
        @headers["Sec-WebSocket-Protocol"] = @protocol
        @headers["Sec-WebSocket-Extensions"] = @extensions.generate_response(env["HTTP_SEC_WEBSOCKET_EXTENSIONS"])
        ["HTTP/1.1 101 Switching Protocols", @headers.to_s, ""].join("\r\n")
      end

      def shutdown(code, reason, error = false)
        @codec.stop
        close_extensions
        # A reason that is not UTF-8 is not sent back (RFC 6455 §5.5.1).
        frame(reason.valid_encoding? ? reason : "", :close, code) if @ready_state == 1
        @ready_state = 3

        events = [[:close, CloseEvent.new(code, reason)]]
        events.unshift([:error, ProtocolError.new(reason)]) if error
        if @sending.nil?
          events.each { |event| emit(*event) }
        elsif @sending.mon_owned?
          @events_behind.concat(events)
        else
          end_messages(events)
        end
      end

      # Not under a thread that compresses: what it uses is freed with the driver.
      def close_extensions
        return @extensions.close unless @sending
        return unless @sending.try_enter

        begin
          @extensions.close
        ensure
          @sending.exit
        end
      end

      # During the closing handshake invalid frames are ignored: the peer's Close may be behind them.
      def fail(type, message)
        shutdown(ERRORS[type], message, true) unless @ready_state > 1
        nil
      end
    end
  end
end
