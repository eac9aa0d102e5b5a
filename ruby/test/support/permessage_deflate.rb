# frozen_string_literal: true

# The extension permessage-deflate with the interface of the gem permessage_deflate: `PermessageDeflate` itself, or what its
# `configure` returns, is added to a driver. The tests use it where that gem is not installed.
begin
  require "permessage_deflate"
rescue LoadError
  require_relative "permessage_deflate/session"

  class PermessageDeflate
    # Methods of both the class and its instances.
    module Extension
      def name = "permessage-deflate"
      def type = "permessage"
      def rsv1 = true
      def rsv2 = false
      def rsv3 = false

      def configure(options)
        PermessageDeflate.new(options)
      end

      def create_client_session
        ClientSession.new(@options || {})
      end

      def create_server_session(offers)
        ServerSession.new(@options || {}, offers.first)
      end
    end
    include Extension
    extend Extension

    def initialize(options)
      @options = options
    end

    class ClientSession < Session
      def generate_offer
        { "client_max_window_bits" => true }
      end

      def activate(answer)
        take("client", "server", answer)
        true
      end
    end

    class ServerSession < Session
      def initialize(options, offer)
        super(options)
        @offer = offer
      end

      def generate_response
        answer = @offer.select { |name, value| name.end_with?("takeover") || value.is_a?(Integer) }
        take("server", "client", answer)
        answer
      end
    end
  end
end
