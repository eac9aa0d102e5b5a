# frozen_string_literal: true

# `Protocol::WebSocket`, as the gem protocol-websocket 0.21 offers it, with reading and masking done natively. It differs
# on purpose: invalid UTF-8 closes with 1007 and is found in the fragment that holds it, messages and what they
# inflate to have a bound, and frozen payloads are taken.
require "io/wait"
require "stringio"
require_relative "../../wireloom"
require_relative "../drop_in"

Wireloom::DropIn.replace(
  "protocol_websocket",
  gem: "protocol-websocket",
  features: %w[
    protocol/websocket protocol/websocket/version protocol/websocket/error protocol/websocket/headers
    protocol/websocket/frame protocol/websocket/text_frame protocol/websocket/binary_frame
    protocol/websocket/continuation_frame protocol/websocket/close_frame protocol/websocket/ping_frame
    protocol/websocket/pong_frame protocol/websocket/framer protocol/websocket/coder protocol/websocket/coder/json
    protocol/websocket/message protocol/websocket/connection protocol/websocket/extensions
    protocol/websocket/extension/compression protocol/websocket/extension/compression/constants
    protocol/websocket/extension/compression/deflate protocol/websocket/extension/compression/inflate
  ]
) do
  %w[watch error headers frame framer message connection compression extensions].each do |part|
    require_relative "protocol_websocket/#{part}"
  end
  Wireloom::ProtocolWebSocket.attach(Protocol::WebSocket)
end
