# frozen_string_literal: true

require_relative "test_helper"
require "json"
require "open3"
require "rbconfig"

# The replacement of websocket-driver and the original, on the same random streams. WIRELOOM_SEED=random explores.
class AlikeTest < Wireloom::TestCase
  COUNT = 500

  def outcomes(seed, original)
    file = File.expand_path("drop_in/websocket_driver_alike.rb", __dir__)
    out, err, status = Open3.capture3({ "ORIGINAL" => original }, RbConfig.ruby, file, seed.to_s, COUNT.to_s)
    skip "the original is not installed" if original == "1" && err.include?("cannot load such file")
    assert status.success?, err
    out.lines.map { |line| JSON.parse(line) }
  end

  def test_what_comes_of_streams
    seed = ENV["WIRELOOM_SEED"] == "random" ? Random.new_seed % 1_000_000 : 1
    originals = outcomes(seed, "1")
    own = outcomes(seed, "0")
    assert_equal COUNT, own.size
    originals.zip(own) do |original, replacement|
      # Text that is not UTF-8 is refused earlier than the original does: whatever it finds behind that is not looked at.
      next if replacement[1].include?(["close", 1007, "Could not decode a text frame as UTF-8"])

      assert_equal original, replacement, "seed #{original[0]}"
    end
  end
end
