# frozen_string_literal: true

require "json"

module Protocol
  module WebSocket
    # How values become messages and back.
    module Coder
      # JSON with Symbols for names.
      module JSON
        # @param buffer [String] JSON
        # @return [Object]
        # @raise [JSON::ParserError]
        def self.parse(buffer)
          ::JSON.parse(buffer, symbolize_names: true)
        end

        # @param object [Object]
        # @return [String] JSON
        def self.generate(object)
          ::JSON.generate(object)
        end
      end

      DEFAULT = JSON
    end

    # A message, whole.
    class Message
      extend Wireloom::ProtocolWebSocket::Watch

      # The message that +coder+ makes of +value+.
      #
      # @param value [Object]
      # @param coder [#generate]
      # @return [Message]
      def self.generate(value, coder = Coder::DEFAULT)
        new(coder.generate(value))
      end

      # @param buffer [String]
      def initialize(buffer = "")
        @buffer = buffer
      end

      # @return [String]
      attr_reader :buffer

      # In bytes.
      #
      # @return [Integer]
      def size
        @buffer.bytesize
      end

      # @param other [#to_str]
      # @return [Boolean]
      def ==(other)
        @buffer == other.to_str
      end

      # @return [String]
      def to_str
        @buffer
      end

      # @return [Encoding]
      def encoding
        @buffer.encoding
      end

      # The value that +coder+ reads from it.
      #
      # @param coder [#parse]
      # @return [Object]
      def parse(coder = Coder::DEFAULT)
        coder.parse(@buffer)
      end

      # @param coder [#parse]
      # @return [Hash]
      def to_h(...)
        parse(...).to_h
      end

      # Sends it as text.
      #
      # @param connection [Connection]
      # @param options [Hash] for the writer
      # @return [Frame]
      def send(connection, **options)
        connection.send_text(@buffer, **options)
      end
    end

    # A message of text, in UTF-8.
    class TextMessage < Message
    end

    # A message of bytes.
    class BinaryMessage < Message
      # Sends it.
      #
      # @param connection [Connection]
      # @param options [Hash] for the writer
      # @return [Frame]
      def send(connection, **options)
        connection.send_binary(@buffer, **options)
      end
    end

    # A Ping to send.
    class PingMessage < Message
      # Sends it.
      #
      # @param connection [Connection]
      # @return [Frame]
      def send(connection)
        connection.send_ping(@buffer)
      end
    end
  end
end
