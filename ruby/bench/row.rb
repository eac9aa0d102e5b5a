# frozen_string_literal: true

require_relative "original"

module Bench
  # One workload, that the original and its replacement do alike.
  #
  # `gem`: the replacement's name. `per`: what is counted. `bar`: how many times as fast as the original the replacement has to be,
  # where a bar is set.
  #
  # `measure` is :time, or :memory for what the process grows by, in bytes, over nine times as much work as before; its bar
  # is the most that it may grow by.
  #
  # The block sets up, and returns what does the work: a lambda that raises when the work was not done, and returns how many
  # of `per` it did.
  Row = Struct.new(:name, :gem, :what, :per, :bar, :measure, :work, keyword_init: true) do
    def label
      "#{name}: #{what}"
    end
  end

  ROWS = []

  def self.row(name, what, gem:, per:, bar: nil, measure: :time, &work)
    ROWS << Row.new(name:, gem:, what:, per:, bar:, measure:, work:)
  end

  # The argument of the blocks of rows.
  Contestant = Struct.new(:row, :original, :smoke) do
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
require_relative "rows/protocol_http2"
