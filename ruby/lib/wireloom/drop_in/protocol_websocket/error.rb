# frozen_string_literal: true

# The base class is protocol-http's where that gem is installed, else the same class made here.
begin
  require "protocol/http/error"
rescue LoadError
  module Protocol
    module HTTP
      # Base of the protocols' exceptions.
      class Error < StandardError
      end
    end
  end
end

module Protocol
  module WebSocket
    # The release whose public surface this is.
    VERSION = "0.21.3"

    # The base of all errors, and the close codes of RFC 6455 §7.4.1.
    class Error < HTTP::Error
      NO_ERROR = 1000
      GOING_AWAY = 1001
      PROTOCOL_ERROR = 1002
      INVALID_DATA = 1003
      INVALID_PAYLOAD = 1007
      POLICY_VIOLATION = 1008
      MESSAGE_TOO_LARGE = 1009
      MISSING_EXTENSION = 1010
      UNEXPECTED_CONDITION = 1011
      INTERNAL_ERROR = 1011
    end

    # The peer broke the protocol. The connection is lost.
    class ProtocolError < Error
      # 
      #
      # @param message [String]
      # @param code [Integer] of the Close frame
      def initialize(message, code = PROTOCOL_ERROR)
        super(message)
        @code = code
      end

      # @return [Integer]
      attr_reader :code
    end

    # The peer closed with another code than 1000.
    class ClosedError < ProtocolError
    end

    # A payload has another length than it should.
    class FrameSizeError < ProtocolError
    end
  end
end
