# frozen_string_literal: true

require "json"

module Protocol
  module WebSocket
    # How values become messages and back.
    module Coder
      # JSON with Symbols for names.
      module JSON
        def self.parse(buffer)
          ::JSON.parse(buffer, symbolize_names: true)
        end

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
      def self.generate(value, coder = Coder::DEFAULT)
        new(coder.generate(value))
      end

      def initialize(buffer = "")
        @buffer = buffer
      end

      attr_reader :buffer

      # In bytes.
      def size
        @buffer.bytesize
      end

      def ==(other)
        @buffer == other.to_str
      end

      def to_str
        @buffer
      end

      def encoding
        @buffer.encoding
      end

      # The value that +coder+ reads from it.
      def parse(coder = Coder::DEFAULT)
        coder.parse(@buffer)
      end

      def to_h(...)
        parse(...).to_h
      end

      def send(connection, **options)
        connection.send_text(@buffer, **options)
      end
    end

    # A message of text, in UTF-8.
    class TextMessage < Message
    end

    # A message of bytes.
    class BinaryMessage < Message
      def send(connection, **options)
        connection.send_binary(@buffer, **options)
      end
    end

    # A Ping to send.
    class PingMessage < Message
      def send(connection)
        connection.send_ping(@buffer)
      end
    end
  end
end
