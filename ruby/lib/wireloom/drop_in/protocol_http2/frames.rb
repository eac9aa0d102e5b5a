# frozen_string_literal: true

module Wireloom
  # Frames, streams and connections of the gem protocol-http2, with fewer calls. The native methods come before the gem's own and leave
  # out steps between them: a subclass or an object that overrides such a step gets it called, and a program that changes one of the
  # gem's classes gets all steps back.
  module ProtocolHTTP2
    # The gem's classes and modules whose steps are left out.
    OWN = %i[
      Frame DataFrame HeadersFrame WindowUpdateFrame ResetStreamFrame SettingsFrame PingFrame Continued Padded Framer FlowControlled
      Window LocalWindow Settings PendingSettings Connection Client Server Stream
    ].map { |name| ::Protocol::HTTP2.const_get(name) }.freeze
    private_constant :OWN

    class << self
      # Reads the payload of a frame whose header was read.
      #
      # @api private
      def read_rest(stream, frames, header, maximum_size)
        length, type, flags, stream_id = header
        frame = (frames[type] || ::Protocol::HTTP2::Frame).new(stream_id, flags, type, length)
        frame.read(stream, maximum_size)
        frame
      end

      # Writes a header block that may be too long for one frame.
      #
      # @api private
      def write_block(connection, stream_id, flags, block)
        frame = ::Protocol::HTTP2::HeadersFrame.new(stream_id, flags)
        frame.pack(block, maximum_size: connection.maximum_frame_size)
        connection.write_frame(frame)
      end

      # Whether the methods of a class are the gem's, or its replacement's.
      #
      # @api private
      def own?(mod, names)
        names.all? { |name| OWNERS.include?(mod.instance_method(name).owner) }
      rescue NameError
        false
      end

      # Whether `window_updated` of a class of streams only wakes the fibers that wait for window, as async-http's does.
      #
      # @api private
      def only_wakes?(stream_class)
        owner = stream_class.instance_method(:window_updated).owner
        return true if OWN.include?(owner)
        return false unless defined?(::Async::HTTP::Protocol::HTTP2::Output)

        async = ::Async::HTTP::Protocol::HTTP2
        [[stream_class, :window_updated, async::Stream], [stream_class, :send_body, async::Stream],
         [async::Output, :window_updated, async::Output]].all? do |mod, name, own|
          method = mod.instance_method(name)
          method.owner == own && method.source_location&.first&.end_with?("async/http/protocol/http2/#{own.name[/\w+\z/].downcase}.rb")
        end
      rescue NameError
        false
      end
    end

    # Notices changes of the gem's classes, of their subclasses, and of modules that these include.
    module Watch
      include DropIn::Watch

      def wireloom_changed(name)
        super
        is_a?(Class) && singleton_class? ? ProtocolHTTP2.forget(self) : ProtocolHTTP2.changed(OWN.include?(self))
      end
    end

    # Notices methods of one object.
    module WatchObject
      def extend(*modules)
        super.tap { singleton_class.wireloom_follow(modules) }
      end

      private

      def singleton_method_added(name)
        super
        ProtocolHTTP2.forget(singleton_class)
      end

      def singleton_method_removed(name)
        super
        ProtocolHTTP2.forget(singleton_class)
      end

      def singleton_method_undefined(name)
        super
        ProtocolHTTP2.forget(singleton_class)
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

    # Before `Connection`, with the native `read_frame` and `decode_headers`.
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
    end

    before = %i[Framer Frame HeadersFrame DataFrame Connection Stream].to_h { |name| [name, const_get(name)] }
    OWNERS = (OWN + before.values).freeze
    private_constant :OWNERS
    attach
    before.each { |name, mod| ::Protocol::HTTP2.const_get(name).prepend(mod) }
    [::Protocol::HTTP2::Connection, ::Protocol::HTTP2::Stream].each { |mod| mod.include(WatchObject) }
    OWNERS.each { |mod| mod.extend(Watch) }
  end
end
