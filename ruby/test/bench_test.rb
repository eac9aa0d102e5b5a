# frozen_string_literal: true

require_relative "test_helper"
require "open3"
require "rbconfig"

# Every benchmark once, with little input, so that none of them rots.
class BenchTest < Wireloom::TestCase
  def test_every_row_runs
    run = File.expand_path("../bench/run.rb", __dir__)
    out, err, status = Open3.capture3(RbConfig.ruby, "-w", run, "--smoke", "--markdown")
    assert status.success?, err
    setting, table = out.lines.reject { |line| line.start_with?("missing: ") }.partition { |line| line.start_with?("- ") }
    assert(setting.any? { |line| line.start_with?("- Machine: ") }, out)
    rows = table.drop_while { |line| line == "\n" }.drop(2)
    assert_operator rows.size, :>=, 20
    rows.each { |row| assert_match(/\A\| \S+: .* \| [\d.]+ .* \|\n\z/, row) }
  end
end
