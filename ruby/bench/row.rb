# frozen_string_literal: true

require_relative "original"

module Bench
  # One workload, that the original and its replacement do alike.
  #
  # `gem`: the replacement's name. `per`: what is counted. `bar`: how many times as fast as the original the replacement has to be,
  # where a bar is set.
  #
  # `measure` is :time, or :memory for what the process grows by, in bytes, over nine times as much work as before; its bar
  # is the most that it may grow by. :held is the same for one of `per`.
  #
  # `needs` are gems that both use, and `tool` is a program.
  #
  # The block sets up, and returns what does the work: a lambda that raises when the work was not done, and returns how many
  # of `per` it did.
  Row = Struct.new(:name, :gem, :what, :per, :bar, :measure, :needs, :tool, :work, keyword_init: true) do
    # The gems and the program that are not installed.
    def missing
      gems = needs.reject { |name| Gem::Specification.find_all_by_name(name).any? }
      tool.nil? || system("command -v #{tool} > /dev/null") ? gems : [*gems, tool]
    end

    def label
      "#{name}: #{what}"
    end
  end

  ROWS = []

  def self.row(name, what, gem:, per:, bar: nil, measure: :time, needs: [], tool: nil, &work)
    ROWS << Row.new(name:, gem:, what:, per:, bar:, measure:, needs:, tool:, work:)
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
require_relative "rows/applications"
