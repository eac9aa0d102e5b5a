# frozen_string_literal: true

module Bench
  # One workload, that the original and its replacement do alike.
  #
  # `gem`: the replacement's name. `per`: what is counted. `bar`: how many times as fast the replacement has to be, where a
  # bar is set. `published`: what the original's newest release needed for one of `per`, in nanoseconds, on the machine where
  # an empty loop took CALIBRATION seconds. `factor`: by how much that release is faster than the one that Debian packages,
  # for rows that measure the latter. `objects`: how many the newest release allocates for one of `per`.
  #
  # `measure` is :time, or :memory for what the process grows by, in bytes, over nine times as much work as before; its bar
  # is the most that it may grow by.
  #
  # The block sets up, and returns what does the work: a lambda that raises when the work was not done, and returns how many
  # of `per` it did.
  Row = Struct.new(:name, :gem, :what, :per, :bar, :published, :factor, :objects, :measure, :work, keyword_init: true) do
    def label
      "#{name}: #{what}"
    end
  end

  # How to require an original, which gem it is in, and which release the bars are against.
  Original = Struct.new(:feature, :gem, :newest) do
    # The version that is installed here, if any.
    def installed
      Gem::Specification.find_all_by_name(gem).map(&:version).max
    end

    def newest?
      installed && installed >= Gem::Version.new(newest)
    end
  end
  ORIGINALS = {
    "websocket_driver" => Original.new("websocket/driver", "websocket-driver", "0.8.0"),
    "protocol_websocket" => Original.new("protocol/websocket", "protocol-websocket", "0.21.0"),
    "http_2" => Original.new("http/2", "http-2", "1.2.1")
  }.freeze

  ROWS = []

  def self.row(name, what, gem:, per:, bar: nil, published: nil, factor: nil, objects: nil, measure: :time, &work)
    ROWS << Row.new(name:, gem:, what:, per:, bar:, published:, factor:, objects:, measure:, work:)
  end

  # What the blocks of rows are given.
  Contestant = Struct.new(:row, :original, :smoke) do
    # Whether the library of this process is as new as the bars want it, as the replacement always is.
    def newest?
      !original || ORIGINALS.fetch(row.gem).newest?
    end

    # How much to do: +much+, or +little+ where only the running is tested.
    def size(much, little)
      smoke ? little : much
    end

    def check(fine, what = "the work was not done")
      raise "#{row.label}: #{what}" unless fine
    end
  end
end

require_relative "rows/websocket_driver"
require_relative "rows/protocol_websocket"
require_relative "rows/http_2"
