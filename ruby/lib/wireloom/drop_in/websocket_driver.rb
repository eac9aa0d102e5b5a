# frozen_string_literal: true

# Takes the place of the gem `websocket-driver` 0.8: WebSocket::Driver with the same classes, events, options and errors.
require_relative "../drop_in"

Wireloom::DropIn.replace(
  "websocket_driver",
  gem: "websocket-driver",
  features: %w[
    websocket/driver websocket/driver/client websocket/driver/draft75 websocket/driver/draft76
    websocket/driver/event_emitter websocket/driver/headers websocket/driver/hybi websocket/driver/hybi/frame
    websocket/driver/hybi/message websocket/driver/proxy websocket/driver/server websocket/driver/stream_reader
    websocket/http websocket/http/headers websocket/http/request websocket/http/response
    websocket/mask websocket/websocket_mask websocket_mask websocket-driver/websocket_mask
  ]
) do
  require "digest/md5"
  require "digest/sha1"
  require "securerandom"
  require "set"
  require "stringio"
  require "uri"
  require "wireloom"
  begin
    require "websocket/extensions"
    # An autoload, which a Ractor cannot trigger.
    ::WebSocket::Extensions::Parser
  rescue LoadError
    require_relative "websocket_driver/no_extensions"
  end
  require_relative "websocket_driver/driver"
end
