# frozen_string_literal: true

require "digest/sha1"
require "securerandom"

module Protocol
  module WebSocket
    # Names of the opening handshake (RFC 6455 §4, RFC 8441 §5), in lower case.
    module Headers
      PROTOCOL = "websocket"
      SEC_WEBSOCKET_PROTOCOL = "sec-websocket-protocol"
      SEC_WEBSOCKET_VERSION = "sec-websocket-version"
      SEC_WEBSOCKET_KEY = "sec-websocket-key"
      SEC_WEBSOCKET_ACCEPT = "sec-websocket-accept"
      SEC_WEBSOCKET_EXTENSIONS = "sec-websocket-extensions"

      # The nonce of the handshake, and the proof that the server read it.
      module Nounce
        GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

        # A value for Sec-WebSocket-Key: 16 random bytes in base64.
        #
        # @return [String]
        def self.generate_key
          SecureRandom.base64(16)
        end

        # The value of Sec-WebSocket-Accept that answers +key+ (RFC 6455 §4.2.2).
        #
        # @param key [String]
        # @return [String]
        def self.accept_digest(key)
          Digest::SHA1.base64digest(key + GUID)
        end
      end
    end
  end
end
