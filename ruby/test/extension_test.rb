# frozen_string_literal: true

require_relative "test_helper"
require "open3"
require "rbconfig"
require "tmpdir"

class ExtensionTest < Wireloom::TestCase
  LIB = File.expand_path("../lib", __dir__)

  def test_loads
    require "wireloom"
    assert_equal Class, Wireloom::InternalError.class
    assert_operator Wireloom::InternalError, :<, StandardError
  end

  def test_a_panic_can_be_rescued
    require "wireloom"
    capture_subprocess_io do
      2.times do
        error = assert_raises(Wireloom::InternalError) { Wireloom::InternalError.provoke }
        assert_equal "a bug in wireloom: provoked", error.message
      end
    end
  end

  # Runs the command of a gem in the folder of this one.
  def run_gem(gem, *arguments)
    _, _, status = Open3.capture3(RbConfig.ruby, "-e", "gem '#{gem}'")
    skip "the gem #{gem} is not installed" unless status.success?
    script = "gem '#{gem}'; load Gem.bin_path('#{gem}', '#{gem}')"
    out, status = Open3.capture2e(RbConfig.ruby, "-e", script, "--", *arguments, chdir: File.expand_path("..", __dir__))
    assert status.success?, out
  end

  def test_signatures_are_valid
    run_gem("rbs", "-I", "sig", "validate")
  end

  def test_signatures_hold_together_for_steep
    run_gem("steep", "check")
  end

  def test_says_what_is_missing
    Dir.mktmpdir do |folder|
      FileUtils.cp_r(File.join(LIB, "."), folder)
      Dir[File.join(folder, "wireloom/**/*.{so,bundle}")].each { |path| File.delete(path) }
      _, err, status = Open3.capture3(RbConfig.ruby, "-I#{folder}", "-e", "require 'wireloom'")
      refute status.success?
      assert_match(/wireloom: its native extension .* is missing.*install Rust/, err)
    end
  end
end
