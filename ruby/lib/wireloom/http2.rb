# frozen_string_literal: true

module Wireloom
  # HTTP/2 (RFC 9113) without I/O.
  module HTTP2
  end
end
