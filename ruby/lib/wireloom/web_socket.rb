# frozen_string_literal: true

module Wireloom
  # WebSocket (RFC 6455) without I/O.
  module WebSocket
  end
end
