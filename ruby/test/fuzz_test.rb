# frozen_string_literal: true

require_relative "test_helper"
require "open3"
require "rbconfig"

# A few calls of each scenario of `test/fuzz`. WIRELOOM_SEED=random explores, WIRELOOM_SEED=n chooses the same again.
class FuzzTest < Wireloom::TestCase
  def test_accidents_at_a_few_calls
    seed = ENV["WIRELOOM_SEED"] == "random" ? [] : ["--seed", ENV["WIRELOOM_SEED"] || "1"]
    out, status = Open3.capture2e(RbConfig.ruby, "-W0", File.expand_path("fuzz", __dir__), "--points", "8", *seed)
    assert status.success?, "#{status}\n#{out.lines.last(40).join}"
    assert_match(/^driver: 8 of \d{3,} calls$.*^seed \d+: 0 failures$/m, out)
  end
end
