# frozen_string_literal: true

# `Protocol::HPACK` of the gem protocol-hpack 1.5, done natively, and faster frames for the gem protocol-http2, whose own classes stay:
# a program subclasses them and overrides their methods, and each still does what it says. Where protocol-http2 is not installed,
# this is the replacement of protocol-hpack alone.
require_relative "../../wireloom"
require_relative "../drop_in"

Wireloom::DropIn.replace(
  "protocol_http2",
  gem: "protocol-hpack",
  features: %w[
    protocol/hpack protocol/hpack/version protocol/hpack/error protocol/hpack/context protocol/hpack/huffman
    protocol/hpack/compressor protocol/hpack/decompressor
  ]
) do
  require_relative "protocol_http2/hpack"
end

if Wireloom::DropIn.enabled?("protocol_http2")
  begin
    %w[framer connection stream client server].each { |part| require "protocol/http2/#{part}" }
    require_relative "protocol_http2/frames"
    require_relative "protocol_http2/async"
  rescue LoadError => e
    raise unless e.path&.start_with?("protocol/http2")
  end
end
