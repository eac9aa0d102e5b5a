# frozen_string_literal: true

require "json"

module Bench
  # Lists of header fields, connection by connection: those of a folder of the hpack-test-case repository of the HTTP/2 Japan
  # community, such as `nghttp2`, which HPACK_STORIES names in the environment; else made-up ones, for which no bar is set.
  module Stories
    FOLDER = ENV["HPACK_STORIES"]
    PATHS = FOLDER ? Dir[File.join(FOLDER, "*.json")].sort.freeze : [].freeze
    # Of HTTP/1, which HTTP/2 refuses (RFC 9113 §8.2.2).
    REFUSED = %w[connection host keep-alive proxy-connection te transfer-encoding upgrade].freeze

    module_function

    # The name in the titles of the rows.
    def name
      PATHS.empty? ? "made-up stories from fixed seeds" : "recorded stories (HPACK_STORIES)"
    end

    # A bar for the real ones.
    def bar(ratio)
      ratio unless PATHS.empty?
    end

    # The lists of the messages of each connection, at most +most+ connections.
    def read(most)
      paths = PATHS.first(most)
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
