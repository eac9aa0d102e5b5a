# frozen_string_literal: true

require "zlib"

module WebSocket
  class Driver
    # Decides whether the core does permessage-deflate: where it was negotiated by the extension of the gem permessage_deflate as
    # it is. One that a program configured (`PermessageDeflate.configure`), changed or wrote itself is called for each message.
    module CoreDeflate
      SESSION = "permessage_deflate/session.rb"
      METHODS = %i[process_incoming_message process_outgoing_message].freeze
      DEFAULTS = { :@level => Zlib::DEFAULT_COMPRESSION, :@mem_level => Zlib::DEF_MEM_LEVEL,
                   :@strategy => Zlib::DEFAULT_STRATEGY }.freeze
      PARAMETERS = %i[@own_window_bits @own_context_takeover @peer_window_bits @peer_context_takeover].freeze
      private_constant :SESSION, :METHODS, :DEFAULTS, :PARAMETERS

      # @param sessions [Array<Array(Object, Object)>] the extensions that were negotiated, each with its session
      # @return [Array, nil] the window and the context takeover of this end and of the peer, or nil when the extension does it
      def self.parameters(sessions)
        extension, session = sessions[0]
        return unless sessions.size == 1 && defined?(::PermessageDeflate) && extension.equal?(::PermessageDeflate)
        return unless METHODS.all? { |name| session.method(name).source_location&.first&.end_with?(SESSION) }
        return unless DEFAULTS.all? { |name, value| session.instance_variable_get(name) == value }

        parameters = PARAMETERS.map { |name| session.instance_variable_get(name) }
        own_bits, own_takeover, peer_bits, peer_takeover = parameters
        return unless [own_bits, peer_bits].all? { |bits| bits.is_a?(Integer) && bits.between?(8, 15) }

        [own_bits, own_takeover ? true : false, peer_bits, peer_takeover ? true : false]
      end
    end
  end
end
