# frozen_string_literal: true

require_relative "test_helper"
require "json"
require "open3"
require "rbconfig"

# The replacement of websocket-driver and the original, at the same random things. WIRELOOM_SEED=random explores.
class AlikeTest < Wireloom::TestCase
  COUNT = 800

  def outcomes(seed, original)
    file = File.expand_path("drop_in/websocket_driver_alike.rb", __dir__)
    env = { "ORIGINAL" => original, "OLD" => version < Gem::Version.new("0.8") ? "1" : "0" }
    out, err, status = Open3.capture3(env, RbConfig.ruby, file, seed.to_s, COUNT.to_s)
    assert status.success?, err
    out.lines.map { |line| JSON.parse(line) }
  end

  def version
    @version ||= Gem::Specification.find_by_name("websocket-driver").version
  rescue Gem::MissingSpecError
    skip "the original is not installed"
  end

  def test_what_comes_of_them
    seed = ENV["WIRELOOM_SEED"] == "random" ? Random.new_seed % 1_000_000 : (ENV["WIRELOOM_SEED"] || 1).to_i
    originals = outcomes(seed, "1")
    own = outcomes(seed, "0")
    assert_equal COUNT, own.size
    originals.zip(own) do |original, replacement|
      # Text that is not UTF-8 is refused earlier than the original does, whatever it finds behind that, and such reasons for
      # closing are not sent back.
      next if replacement.inspect.match?(/Could not decode a text frame|close.*(?:"ff"|\[255\])/)

      assert_equal original, replacement, "seed #{original[0]}"
    end
  end
end
