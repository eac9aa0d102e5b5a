# frozen_string_literal: true

# Takes the place of the gem http-2: `HTTP2::Client`, `HTTP2::Server` and all that belongs to them, with the same events,
# arguments and errors. Require it before anything requires "http/2".
#
# WIRELOOM_DROP_IN_HTTP_2=0 in the environment requires the original instead.
require "wireloom"
require "wireloom/drop_in"

# `http/2/header/huffman_statemachine` is not among the features: a `require` of it loads the original's file.
Wireloom::DropIn.replace(
  "http_2",
  gem: "http-2",
  features: %w[http/2] + %w[
    version base64 extensions error emitter framer settings flow_buffer connection client server stream header
    header/huffman header/encoding_context header/compressor header/decompressor
  ].map { |name| "http/2/#{name}" }
) do
  require "wireloom/drop_in/http_2/base"
  require "wireloom/drop_in/http_2/settings"
  require "wireloom/drop_in/http_2/header"
  require "wireloom/drop_in/http_2/connection"
  require "wireloom/drop_in/http_2/stream"
  Wireloom::DropIn::HTTP2.complete(HTTP2)
  require "wireloom/drop_in/http_2/watch"
end
