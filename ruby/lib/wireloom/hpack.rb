# frozen_string_literal: true

module Wireloom
  # Header compression for HTTP/2 (RFC 7541).
  module HPACK
  end
end
