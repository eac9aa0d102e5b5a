# frozen_string_literal: true

require "zlib"

module Protocol
  module WebSocket
    module Extension
      # permessage-deflate (RFC 7692): its offer and answer, and compression of messages.
      module Compression
        NAME = "permessage-deflate"
        DEFLATER = Wireloom.const_get(:Deflater)
        INFLATER = Wireloom.const_get(:Inflater)
        private_constant :DEFLATER, :INFLATER

        # zlib has no window of 8 bits.
        MINIMUM_WINDOW_BITS = 9

        # The most bytes that a message may expand to, unless `Inflate#maximum_size=` says otherwise.
        MAXIMUM_SIZE = 1 << 26

        # The offer of a client, as the parts of a Sec-WebSocket-Extensions value.
        #
        # @param client_max_window_bits [Integer, true] 8 to 15, or what the server asks for
        # @param server_max_window_bits [Integer, true] 8 to 15, or what the server chooses
        # @param client_no_context_takeover [Boolean]
        # @param server_no_context_takeover [Boolean]
        # @return [Array<String>]
        # @raise [ArgumentError] for other numbers
        def self.offer(client_max_window_bits: true, server_max_window_bits: true,
                       client_no_context_takeover: false, server_no_context_takeover: false)
          header = [NAME]
          case client_max_window_bits
          when 8..15 then header << "client_max_window_bits=#{client_max_window_bits}"
          when true then header << "client_max_window_bits"
          else raise ArgumentError, "Invalid local maximum window bits!"
          end
          header << "client_no_context_takeover" if client_no_context_takeover
          case server_max_window_bits
          when 8..15 then header << "server_max_window_bits=#{server_max_window_bits}"
          when true # the server's choice
          else raise ArgumentError, "Invalid remote maximum window bits!"
          end
          header << "server_no_context_takeover" if server_no_context_takeover
          header
        end

        # The answer of a server to the +arguments+ of an offer: the parts of its value, and the negotiated options.
        #
        # @param arguments [Array<Array>] pairs of a name and a value
        # @param options [Hash] to begin with
        # @return [Array(Array<String>, Hash)]
        # @raise [ArgumentError] for an unknown name
        def self.negotiate(arguments, **options)
          header = [NAME]
          arguments.each do |key, value|
            option = option(key)
            if key.end_with?("_bits")
              options[option] = [Integer(value || 15), MINIMUM_WINDOW_BITS].max
              header << "#{key}=#{options[option]}"
            else
              options[option] = true
              header << key
            end
          end
          [header, options]
        end

        # The options of the +arguments+ that a server answered with.
        #
        # @param arguments [Array<Array>] pairs of a name and a value
        # @param options [Hash] to begin with
        # @return [Hash]
        # @raise [ArgumentError] for an unknown name
        def self.accept(arguments, **options)
          arguments.each do |key, value|
            options[option(key)] = key.end_with?("_bits") ? Integer(value || 15) : true
          end
          options
        end

        # Makes the server's +connection+ use it.
        #
        # @param connection [Connection]
        # @param options [Hash] of {negotiate}
        # @raise [ArgumentError] when RSV1 is taken
        def self.server(connection, **options)
          connection.reserve!(Frame::RSV1)
          connection.reader = Inflate.server(connection.reader, **options)
          connection.writer = Deflate.server(connection.writer, **options)
        end

        # Makes the client's +connection+ use it.
        #
        # @param connection [Connection]
        # @param options [Hash] of {accept}
        # @raise [ArgumentError] when RSV1 is taken
        def self.client(connection, **options)
          connection.reserve!(Frame::RSV1)
          connection.reader = Inflate.client(connection.reader, **options)
          connection.writer = Deflate.client(connection.writer, **options)
        end

        OPTIONS = %w[
          server_no_context_takeover client_no_context_takeover server_max_window_bits client_max_window_bits
        ].to_h { |key| [key, key.to_sym] }.freeze
        private_constant :OPTIONS

        def self.option(key)
          OPTIONS[key] or raise ArgumentError, "Unknown option: #{key}!"
        end
        private_class_method :option

        # Compresses messages on their way out.
        class Deflate
          # The client's, with what was negotiated.
          #
          # @param parent [#pack_text_frame, #pack_binary_frame] the writer that it wraps
          # @param client_max_window_bits [Integer]
          # @param client_no_context_takeover [Boolean]
          # @param options [Hash] those of {#initialize}
          # @return [Deflate]
          def self.client(parent, client_max_window_bits: 15, client_no_context_takeover: false, **options)
            new(parent, window_bits: client_max_window_bits, context_takeover: !client_no_context_takeover, **options)
          end

          # The server's, with what was negotiated.
          #
          # @param parent [#pack_text_frame, #pack_binary_frame] the writer that it wraps
          # @param server_max_window_bits [Integer]
          # @param server_no_context_takeover [Boolean]
          # @param options [Hash] those of {#initialize}
          # @return [Deflate]
          def self.server(parent, server_max_window_bits: 15, server_no_context_takeover: false, **options)
            new(parent, window_bits: server_max_window_bits, context_takeover: !server_no_context_takeover, **options)
          end

          # @param parent [#pack_text_frame, #pack_binary_frame] the writer that it wraps
          # @param level [Integer] with another than zlib's default, zlib compresses in place of the core
          # @param memory_level [Integer] likewise
          # @param strategy [Integer] likewise
          # @param window_bits [Integer] 8 to 15
          # @param context_takeover [Boolean] whether a message may refer to those before it
          # @param _options [Hash] the other parameters
          def initialize(parent, level: Zlib::DEFAULT_COMPRESSION, memory_level: Zlib::DEF_MEM_LEVEL,
                         strategy: Zlib::DEFAULT_STRATEGY, window_bits: 15, context_takeover: true, **_options)
            @parent = parent
            @deflate = nil
            @level = level
            @memory_level = memory_level
            @strategy = strategy
            @window_bits = window_bits
            @context_takeover = context_takeover
            @configured = [level, memory_level, strategy] != DEFAULTS || !WINDOW_BITS.cover?(window_bits)
          end

          # With these the core compresses; with others, which only zlib has, zlib does.
          DEFAULTS = [Zlib::DEFAULT_COMPRESSION, Zlib::DEF_MEM_LEVEL, Zlib::DEFAULT_STRATEGY].freeze
          # zlib raises for others.
          WINDOW_BITS = (8..15)
          private_constant :DEFAULTS, :WINDOW_BITS

          # @return [Integer], [Boolean]
          attr_reader :window_bits, :context_takeover

          # @return [String]
          def to_s
            "#<#{self.class} window_bits=#{@window_bits} context_takeover=#{@context_takeover}>"
          end

          # The frame of a text message.
          #
          # @param buffer [String]
          # @param compress [Boolean]
          # @param options [Hash] for the writer that it wraps
          # @return [Frame]
          def pack_text_frame(buffer, compress: true, **options)
            return @parent.pack_text_frame(buffer, **options) unless compress

            compressed(@parent.pack_text_frame(deflate(buffer), **options))
          end

          # The frame of a binary message.
          #
          # @param buffer [String]
          # @param compress [Boolean]
          # @param options [Hash] for the writer that it wraps
          # @return [Frame]
          def pack_binary_frame(buffer, compress: false, **options)
            return @parent.pack_binary_frame(buffer, **options) unless compress

            compressed(@parent.pack_binary_frame(deflate(buffer), **options))
          end

          # The peer does not get the last frame: later messages do not refer to it.
          #
          # @api private
          def wireloom_forget
            @deflate = nil
          end

          private

          def compressed(frame)
            frame.flags |= Frame::RSV1
            frame
          end

          # An empty message (RFC 7692 §7.2.3.6): zlib has nothing to flush where nothing was given.
          EMPTY = "\x00".b.freeze
          private_constant :EMPTY

          # Without the empty block that ends a flush (RFC 7692 §7.2.1).
          def deflate(buffer)
            return deflate_by_zlib(buffer) if @configured

            (@deflate ||= DEFLATER.new(@window_bits, @context_takeover ? true : false)).deflate(buffer)
          end

          def deflate_by_zlib(buffer)
            return EMPTY.dup if buffer.empty?

            deflate = @deflate || Zlib::Deflate.new(@level, -@window_bits, @memory_level, @strategy)
            @deflate = deflate if @context_takeover
            result = deflate.deflate(buffer, Zlib::SYNC_FLUSH)
            result.byteslice(0, result.bytesize - 4)
          end
        end

        # Expands messages on their way in.
        class Inflate
          # The client's, with what was negotiated.
          #
          # @param parent [#unpack_frames] the reader that it wraps
          # @param server_max_window_bits [Integer]
          # @param server_no_context_takeover [Boolean]
          # @param _options [Hash] the other parameters
          # @return [Inflate]
          def self.client(parent, server_max_window_bits: 15, server_no_context_takeover: false, **_options)
            new(parent, window_bits: server_max_window_bits, context_takeover: !server_no_context_takeover)
          end

          # The server's, with what was negotiated.
          #
          # @param parent [#unpack_frames] the reader that it wraps
          # @param client_max_window_bits [Integer]
          # @param client_no_context_takeover [Boolean]
          # @param _options [Hash] the other parameters
          # @return [Inflate]
          def self.server(parent, client_max_window_bits: 15, client_no_context_takeover: false, **_options)
            new(parent, window_bits: client_max_window_bits, context_takeover: !client_no_context_takeover)
          end

          # The bytes that a sender omits (RFC 7692 §7.2.2).
          TRAILER = "\x00\x00\xff\xff".b.freeze

          # @param parent [#unpack_frames] the reader that it wraps
          # @param context_takeover [Boolean] whether a message may refer to those before it
          # @param window_bits [Integer] 8 to 15
          # @param maximum_size [Integer, nil]
          def initialize(parent, context_takeover: true, window_bits: 15, maximum_size: MAXIMUM_SIZE)
            @parent = parent
            @inflate = nil
            @window_bits = window_bits
            @context_takeover = context_takeover
            @maximum_size = maximum_size
          end

          # @return [Integer], [Boolean]
          attr_reader :window_bits, :context_takeover

          # The most bytes that a message may expand to; +nil+ for no limit.
          #
          # @return [Integer, nil]
          attr_accessor :maximum_size

          # @return [String]
          def to_s
            "#<#{self.class} window_bits=#{@window_bits} context_takeover=#{@context_takeover}>"
          end

          # The bytes of a message.
          #
          # @param frames [Array<Frame>] all of its frames
          # @param options [Hash] for the reader that it wraps
          # @return [String]
          # @raise [ProtocolError] when they do not inflate, or the message is too long
          def unpack_frames(frames, **options)
            buffer = @parent.unpack_frames(frames, **options)
            frame = frames.first
            return buffer unless frame.flag?(Frame::RSV1)

            frame.flags &= ~Frame::RSV1
            inflate(buffer)
          end

          private

          def inflate(buffer)
            @inflate ||= INFLATER.new(@window_bits, @context_takeover ? true : false)
            @inflate.inflate(buffer, @maximum_size) or too_long
          rescue Wireloom::DeflateError => error
            raise ProtocolError.new("#{NAME}: #{error.message}", Error::INVALID_PAYLOAD)
          end

          def too_long
            raise ProtocolError.new("Message expands to more than #{@maximum_size} bytes!", Error::MESSAGE_TOO_LARGE)
          end
        end
      end
    end
  end
end
