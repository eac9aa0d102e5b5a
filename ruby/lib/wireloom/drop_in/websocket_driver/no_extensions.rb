# frozen_string_literal: true

module WebSocket
  # Stands in for the gem `websocket-extensions` where it is not installed: nothing can be added, so nothing is negotiated.
  class Extensions
    ExtensionError = Class.new(ArgumentError)

    def add(_extension)
      raise LoadError, "wireloom: extensions need the gem websocket-extensions: add it to your Gemfile"
    end

    def generate_offer; end

    def generate_response(_header); end

    def activate(header)
      raise ExtensionError, "Server sent an extension response for an unknown extension: #{header}" if header && header != ""
    end

    def valid_frame_rsv?(frame)
      !(frame.rsv1 || frame.rsv2 || frame.rsv3)
    end

    def process_incoming_message(message)
      message
    end

    def process_outgoing_message(message)
      message
    end

    def close; end
  end
end
