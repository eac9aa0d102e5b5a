# frozen_string_literal: true

module Wireloom
  # Frames of the gem protocol-http2, read and written with fewer calls. The steps that are left out are those of the gem's own
  # classes: a subclass that overrides one of them is not affected, and a program that changes one of these classes gets all steps back.
  module ProtocolHTTP2
    # The steps that are left out, by the class or module that has them.
    STEPS = {
      ::Protocol::HTTP2::Frame => %i[initialize read read_header read_payload header write write_header write_payload pack],
      ::Protocol::HTTP2::DataFrame => %i[initialize read read_payload pack write],
      ::Protocol::HTTP2::HeadersFrame => %i[initialize read read_payload pack write],
      ::Protocol::HTTP2::Continued => %i[initialize read write pack],
      ::Protocol::HTTP2::Padded => %i[pack],
      ::Protocol::HTTP2::Framer => %i[read_header]
    }.freeze
    private_constant :STEPS

    @plain = true

    class << self
      # Whether none of the steps has been changed.
      #
      # @api private
      attr_reader :plain

      # @api private
      def changed(owner, name)
        @plain = false if name.nil? || STEPS[owner]&.include?(name)
      end
    end

    # Notices changes of the gem's classes.
    module Watch
      def method_added(name)
        super
        ProtocolHTTP2.changed(self, name)
      end

      def include(*)
        super.tap { ProtocolHTTP2.changed(self, nil) }
      end

      def prepend(*)
        super.tap { ProtocolHTTP2.changed(self, nil) }
      end
    end

    # Before `Framer`.
    module Framer
      # @param maximum_frame_size [Integer]
      # @return [::Protocol::HTTP2::Frame]
      # @raise (see ::Protocol::HTTP2::Framer#read_frame)
      def read_frame(maximum_frame_size = ::Protocol::HTTP2::MAXIMUM_ALLOWED_FRAME_SIZE)
        return super unless ProtocolHTTP2.plain && instance_of?(::Protocol::HTTP2::Framer)

        frame = ProtocolHTTP2.read_frame(@stream, @frames, maximum_frame_size)
        return frame unless frame.nil? || frame.is_a?(Array)
        raise EOFError, "Could not read frame header!" unless frame

        length, type, flags, stream_id = frame
        frame = (@frames[type] || ::Protocol::HTTP2::Frame).new(stream_id, flags, type, length)
        frame.read(@stream, maximum_frame_size)
        frame
      end
    end

    # Before `Frame`.
    module Frame
      # Payloads up to this length are written together with the header, in bytes.
      TOGETHER = 4096

      # @param stream [#write]
      # @raise (see ::Protocol::HTTP2::Frame#write)
      def write(stream)
        payload = @payload
        unless ProtocolHTTP2.plain && payload && payload.bytesize == @length && @length <= 0xffffff &&
               @stream_id.between?(0, 0x7fffffff) && @flags.between?(0, 255) && SIMPLE[self.class]
          return super
        end
        return stream.write(ProtocolHTTP2.frame(@type, @flags, @stream_id, payload)) if @length <= TOGETHER

        stream.write(ProtocolHTTP2.header(@length, @type, @flags, @stream_id))
        stream.write(payload)
      end

      # Classes that add nothing to the frame that is written, but a continuation.
      SIMPLE = %i[DataFrame HeadersFrame WindowUpdateFrame ResetStreamFrame SettingsFrame PingFrame].to_h do |name|
        [::Protocol::HTTP2.const_get(name), true]
      end.freeze
      private_constant :SIMPLE, :TOGETHER
    end

    # Before `HeadersFrame`.
    module HeadersFrame
      # @param data [String]
      # @param options [Hash]
      def pack(data, maximum_size: nil, **options)
        unless options.empty? && ProtocolHTTP2.plain && instance_of?(::Protocol::HTTP2::HeadersFrame) &&
               data.encoding == Encoding::BINARY && (maximum_size.nil? || data.bytesize <= maximum_size)
          return super
        end

        @flags = @flags & ~::Protocol::HTTP2::PADDED | ::Protocol::HTTP2::END_HEADERS
        @payload = data
        @length = data.bytesize
        @continuation = nil
      end
    end

    # Before `DataFrame`.
    module DataFrame
      # @param data [String, nil]
      # @param options [Hash]
      def pack(data, maximum_size: nil, **options)
        unless data && options.empty? && ProtocolHTTP2.plain && instance_of?(::Protocol::HTTP2::DataFrame) &&
               (maximum_size.nil? || data.bytesize <= maximum_size)
          return super
        end

        @flags &= ~::Protocol::HTTP2::PADDED
        @payload = data
        @length = data.bytesize
      end
    end

    # Before `Connection`.
    module Connection
      # @param headers [Enumerable<Array(String, String)>]
      # @param buffer [String, nil] that the block is appended to
      # @return [String] the block
      def encode_headers(headers, buffer = nil)
        context = @encoder
        unless buffer.nil? && headers.is_a?(Array) && ::Protocol::HPACK::Context.plain?(context) &&
               context.table_size == @remote_settings.header_table_size
          return buffer ? super : super(headers)
        end

        context.compress(headers)
      end

      # @param data [String] a block
      # @return [Array<Array(String, String)>]
      # @raise [::Protocol::HPACK::CompressionError] when it breaks RFC 7541
      def decode_headers(data)
        context = @decoder
        return super unless ::Protocol::HPACK::Context.plain?(context)

        limit = @local_settings.header_table_size
        context.table_size_limit = limit unless context.max_limit == limit
        headers = context.decompress(data)
        headers.empty? && !data.empty? ? super : headers
      rescue Wireloom::HPACK::Error => e
        raise ::Protocol::HPACK::CompressionError, e.message
      end
    end

    attach(::Protocol::HTTP2::DataFrame, ::Protocol::HTTP2::HeadersFrame)
    %i[Framer Frame HeadersFrame DataFrame Connection].each { |name| ::Protocol::HTTP2.const_get(name).prepend(const_get(name)) }
    STEPS.each_key { |changed| changed.extend(Watch) }
  end
end
