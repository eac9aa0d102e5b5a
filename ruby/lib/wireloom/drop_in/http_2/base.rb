# frozen_string_literal: true

# As the original does: there is a `Base64` in any case.
require "base64" if RUBY_VERSION < "3.3"

# Constants, errors and mixins of HTTP2, and the native classes.
module HTTP2
  # The release whose interface this is.
  VERSION = "1.2.3"

  DEFAULT_FLOW_WINDOW = 65_535
  DEFAULT_HEADER_SIZE = 4096
  DEFAULT_MAX_CONCURRENT_STREAMS = 100
  DEFAULT_WEIGHT = 16
  MAX_HEADER_LIST_SIZE = 0x7fffffff
  MAX_HEADER_TABLE_SIZE = 4096

  CONNECTION_PREFACE_MAGIC = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

  REQUEST_MANDATORY_HEADERS = %w[:scheme :method :authority :path].freeze
  RESPONSE_MANDATORY_HEADERS = %w[:status].freeze
  CONNECTION_FRAME_TYPES = %i[settings ping goaway].freeze
  HEADERS_FRAME_TYPES = %i[headers push_promise].freeze
  STREAM_OPEN_STATES = %i[open half_closed_local].freeze
  EMPTY = [].freeze
  EMPTY_HASH = {}.freeze

  # Flags of frames (RFC 9113 §6).
  END_STREAM = 0x1
  ACK = 0x1
  RESERVED = 0x2
  END_HEADERS = 0x4
  PADDED = 0x8
  PRIORITY = 0x20

  # The settings before SETTINGS arrive (RFC 9113 §6.5.2).
  SPEC_DEFAULT_CONNECTION_SETTINGS = {
    settings_header_table_size: 4096,
    settings_enable_push: 1,
    settings_max_concurrent_streams: 0x7fffffff,
    settings_initial_window_size: 65_535,
    settings_max_frame_size: 16_384,
    settings_max_header_list_size: MAX_HEADER_LIST_SIZE
  }.freeze

  # The settings of this side by default.
  DEFAULT_CONNECTION_SETTINGS = SPEC_DEFAULT_CONNECTION_SETTINGS.merge(settings_max_concurrent_streams: 100).freeze

  # Exceptions, and by which Symbol each goes on the wire.
  module Error
    # All of them.
    class Error < StandardError; end

    # The client did not begin as an HTTP/2 client does.
    class HandshakeError < Error; end

    # The connection is lost.
    class ProtocolError < Error; end

    # Headers that cannot be encoded or decoded.
    class CompressionError < ProtocolError; end

    # A window was overrun.
    class FlowControlError < ProtocolError; end

    # A frame that the state of its stream does not allow.
    class InternalError < ProtocolError; end

    # The stream is closed.
    class StreamClosed < Error; end

    # The connection is closed, or about to be.
    class ConnectionClosed < Error; end

    # As many streams are open as may be.
    class StreamLimitExceeded < Error; end

    # A frame whose size its type does not allow.
    class FrameSizeError < Error; end

    @types = {
      handshake_error: HandshakeError,
      protocol_error: ProtocolError,
      compression_error: CompressionError,
      flow_control_error: FlowControlError,
      internal_error: InternalError,
      stream_closed: StreamClosed,
      connection_closed: ConnectionClosed,
      stream_limit_exceeded: StreamLimitExceeded,
      frame_size_error: FrameSizeError
    }.freeze

    class << self
      # The classes by their Symbols.
      #
      # @return [Hash{Symbol => Class}]
      attr_reader :types

      # The exception of that type which +error+ caused.
      # @api private
      def caused(type, message, error)
        raise types.fetch(type, ProtocolError), message, error.backtrace, cause: error
      rescue Error => e
        e
      end
    end
  end

  # Events and listeners, for any object. Connections and streams have native ones, which `emit` calls.
  module Emitter
    # Calls the block each time +event+ happens, until it answers +:delete+.
    #
    # @param event [Symbol]
    # @raise [ArgumentError] without a block
    def on(event, &block)
      raise ArgumentError, "must provide callback" unless block

      listeners(event.to_sym).push(block)
    end

    # Calls the block the next time only.
    #
    # @param event [Symbol]
    # @raise [ArgumentError] without a block
    def once(event, &block)
      raise ArgumentError, "must provide callback" unless block

      on(event) do |*args, &callback|
        block.call(*args, &callback)
        :delete
      end
    end

    # Calls the listeners of +event+.
    #
    # @param event [Symbol]
    # @param args [Array] what the listeners are called with
    def emit(event, *args, &block)
      wireloom_emit(event, *args, &block)
    end

    private

    def wireloom_emit(event, *args, &block)
      listeners(event).delete_if { |listener| :delete.equal?(listener.call(*args, &block)) }
    end

    def listeners(event)
      (@listeners ||= {})[event] ||= []
    end
  end

  # Included by classes that send DATA within windows; the work is native.
  module FlowBuffer
    include Error

    MAX_WINDOW_SIZE = 0x7fffffff
  end

  # Reading and appending bytes, for programs that include it.
  module BufferUtils
    private

    # Takes +length+ bytes from the front of +string+.
    def read_str(string, length)
      return "".b if length.zero?

      chunk = string.byteslice(0, length)
      string.replace(string.byteslice(length..-1) || "".b)
      chunk
    end

    def read_uint32(string)
      read_str(string, 4).unpack1("N")
    end

    def shift_byte(string)
      read_str(string, 1).ord
    end

    def append_str(string, data)
      string << data.b
    end
  end

  # Packing numbers into a buffer, for programs that include it.
  module PackingExtensions
    private

    def pack(numbers, template, buffer:, offset: -1)
      packed = numbers.pack(template)
      offset == -1 ? buffer << packed : buffer.insert(offset, packed)
    end
  end

  unless defined?(::Base64)
    # The gem base64, which is no default gem since Ruby 3.4.
    module Base64
      module_function

      # @param bytes [String]
      # @return [String]
      def encode64(bytes)
        [bytes].pack("m")
      end

      # @param string [String]
      # @return [String]
      def decode64(string)
        string.unpack1("m")
      end

      # @param bytes [String]
      # @return [String] in one line
      def strict_encode64(bytes)
        [bytes].pack("m0")
      end

      # @param string [String]
      # @return [String]
      # @raise [ArgumentError] when it is no base64
      def strict_decode64(string)
        string.unpack1("m0")
      end

      # @param bytes [String]
      # @param padding [Boolean]
      # @return [String]
      def urlsafe_encode64(bytes, padding: true)
        string = strict_encode64(bytes).tr("+/", "-_")
        padding ? string : string.delete("=")
      end

      # @param string [String]
      # @return [String]
      # @raise [ArgumentError] when it is no base64
      def urlsafe_decode64(string)
        string = string.tr("-_", "+/")
        string = string.ljust((string.length + 3) & ~3, "=") unless string.end_with?("=")
        strict_decode64(string)
      end
    end
  end

  Wireloom::DropIn::HTTP2.define(self)

  # Frames that wait for a window. Its methods are native.
  class FrameBuffer
    # @!method <<(frame)
    #   Appends a frame.
    #   @param frame [Hash{Symbol => Object}]
    #   @return [FrameBuffer]

    # @!method retrieve(window)
    #   Takes the first frame, or the part of it that +window+ allows.
    #   @param window [Integer] in bytes
    #   @return [Hash{Symbol => Object}, nil]

    # @!method bytesize
    #   @return [Integer] of the content of all frames

    # @!method empty?
    #   @return [Boolean]

    # @!method clear
    #   Removes all frames.
  end

  # Frames to bytes and back.
  class Framer
    # @!method generate(frame)
    #   @param frame [Hash{Symbol => Object}]
    #   @return [String] BINARY
    #   @raise [Error::CompressionError] for a frame that cannot be

    # @!method parse(buffer)
    #   Takes one frame from the front of +buffer+.
    #   @param buffer [String] not frozen
    #   @return [Hash{Symbol => Object}, nil] nil while the frame is not complete; its length alone when its type is unknown
    #   @raise [Error::ProtocolError, Error::FrameSizeError] when it breaks RFC 9113 §6

    # @!method local_max_frame_size
    #   @return [Integer] the longest frame that is taken, in bytes

    # @!method local_max_frame_size=(size)
    #   @param size [Integer]

    # @!method remote_max_frame_size
    #   @return [Integer] the longest frame that the peer takes, in bytes

    # @!method remote_max_frame_size=(size)
    #   @param size [Integer]

    include Error
    include PackingExtensions
    include BufferUtils

    DEFAULT_MAX_FRAME_SIZE = 16_384
    MAX_STREAM_ID = 0x7fffffff
    MAX_WINDOWINC = 0x7fffffff
    FRAME_LENGTH_HISHIFT = 16
    FRAME_LENGTH_LOMASK = 0xffff
    ALTSVCPACK = "Nn"

    FRAME_TYPES = {
      data: 0x0, headers: 0x1, priority: 0x2, rst_stream: 0x3, settings: 0x4, push_promise: 0x5, ping: 0x6, goaway: 0x7,
      window_update: 0x8, continuation: 0x9, altsvc: 0xa, origin: 0xc
    }.freeze
    FRAME_TYPES_BY_NAME = FRAME_TYPES.invert.freeze
    FRAME_TYPES_WITH_PADDING = %i[data headers push_promise].freeze

    DEFINED_SETTINGS = {
      settings_header_table_size: 1,
      settings_enable_push: 2,
      settings_max_concurrent_streams: 3,
      settings_initial_window_size: 4,
      settings_max_frame_size: 5,
      settings_max_header_list_size: 6,
      settings_enable_connect_protocol: 8,
      settings_no_rfc7540_priorities: 9
    }.freeze
    DEFINED_SETTINGS_BY_ID = DEFINED_SETTINGS.invert.freeze

    DEFINED_ERRORS = %i[
      no_error protocol_error internal_error flow_control_error settings_timeout stream_closed frame_size_error
      refused_stream cancel compression_error connect_error enhance_your_calm inadequate_security http_1_1_required
    ].freeze

    # Puts the nine bytes of a frame's header before +buffer+, its payload.
    #
    # @param frame [Hash{Symbol => Object}]
    # @param buffer [String]
    # @return [String]
    # @raise [Error::CompressionError] for a type, a length, a stream or flags that cannot be
    def common_header(frame, buffer:)
      type, length, flags = frame.values_at(:type, :length, :flags)
      stream = frame.fetch(:stream, 0)
      raise CompressionError, "Invalid frame type (#{type})" unless FRAME_TYPES[type]
      raise CompressionError, "Frame size is too large: #{length}" if length > remote_max_frame_size
      raise CompressionError, "Frame size is invalid: #{length}" if length.negative?
      raise CompressionError, "Stream ID (#{stream}) is outside the valid range" unless stream.between?(0, MAX_STREAM_ID)

      increment = frame[:increment]
      if type == :window_update && !increment.between?(1, MAX_WINDOWINC)
        raise CompressionError, "Window increment (#{increment}) is outside the valid range"
      end
      unless flags.is_a?(Integer) && flags.between?(0, 255)
        raise CompressionError, "Invalid frame flag (#{flags}) for #{type}"
      end

      header = [length >> 16, length & 0xffff, FRAME_TYPES[type], flags, stream].pack("CnCCN")
      return header << buffer.b if buffer.frozen?

      buffer.force_encoding(Encoding::BINARY).prepend(header)
    end

    # The header at the front of +buffer+, which stays as it is; of an unknown type, its length alone.
    #
    # @param buffer [String] of nine bytes or more
    # @return [Hash{Symbol => Object}]
    def read_common_header(buffer)
      high, low, type, flags, stream = buffer.byteslice(0, 9).unpack("CnCCN")
      type = FRAME_TYPES_BY_NAME[type]
      length = (high << 16) | low
      return { length: length } unless type

      { type: type, flags: flags, length: length, stream: stream & MAX_STREAM_ID }
    end
  end
end
