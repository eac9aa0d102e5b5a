# frozen_string_literal: true

require "json"

module Bench
  # Lists of header fields, connection by connection: those of the HPACK test cases of the HTTP/2 Japan community where they
  # are at hand beside the checkout, else made-up ones.
  module Stories
    FOLDER = File.expand_path("../../../shared/vectors/hpack/nghttp2", __dir__)
    # Of HTTP/1, which HTTP/2 refuses (RFC 9113 §8.2.2).
    REFUSED = %w[connection host keep-alive proxy-connection te transfer-encoding upgrade].freeze

    module_function

    # At most so many connections: for each the lists of its messages.
    def read(most)
      paths = Dir[File.join(FOLDER, "*.json")].sort.first(most)
      return Array.new(most) { |seed| made_up(Random.new(seed)) } if paths.empty?

      paths.map do |path|
        JSON.parse(File.read(path)).fetch("cases").map do |message|
          message.fetch("headers").flat_map(&:to_a).reject { |name, _| REFUSED.include?(name) }
        end
      end
    end

    # Responses of one site.
    def made_up(random)
      Array.new(20) do
        [[":status", "200"], ["server", "made-up/1.0"], ["content-type", %w[text/html text/css image/png][random.rand(3)]],
         ["content-length", random.rand(100_000).to_s], ["etag", "\"#{random.bytes(6).unpack1("H*")}\""]]
      end
    end
  end
end
