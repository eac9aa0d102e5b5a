# frozen_string_literal: true

require_relative "test_helper"
require "fileutils"
require "open3"
require "rbconfig"
require "tmpdir"
require "wireloom/drop_in"

# The machinery, on a gem made up here; each replacement's own test says that it takes its original's place.
class DropInTest < Wireloom::TestCase
  LIB = File.expand_path("../lib", __dir__)
  REPLACE = <<~RUBY
    require "wireloom/drop_in"
    Wireloom::DropIn.replace("old", gem: "old", features: %w[old old/part]) { WHO = "new" }
  RUBY

  def setup
    @folder = Dir.mktmpdir
    FileUtils.mkdir_p(File.join(@folder, "old"))
    File.write(File.join(@folder, "old.rb"), "WHO = 'old'")
    File.write(File.join(@folder, "old/part.rb"), "PART = 'old'")
  end

  def teardown
    FileUtils.rm_rf(@folder)
  end

  def ruby(script, env = {})
    Open3.capture3(env, RbConfig.ruby, "-I#{LIB}", "-I#{@folder}", "-e", script)
  end

  def test_takes_the_place_of_the_original
    out, err, = ruby("#{REPLACE}; p require('old'), require('old/part'), WHO, defined?(PART)")
    assert_equal "false\nfalse\n\"new\"\nnil\n", out, err
  end

  def test_absolute_paths_of_the_original_are_loaded_too
    out, err, = ruby("#{REPLACE}; p require('#{@folder}/old'), WHO")
    assert_equal "false\n\"new\"\n", out, err
  end

  def test_holds_where_the_original_joins_the_load_path_later
    out, err, = ruby("$:.delete('#{@folder}'); #{REPLACE}; $:.unshift('#{@folder}'); p require('old'), WHO")
    assert_equal "false\n\"new\"\n", out, err
  end

  def test_is_switched_off_by_the_environment
    [{ "WIRELOOM_DROP_IN" => "0" }, { "WIRELOOM_DROP_IN_OLD" => "off" }].each do |env|
      out, err, = ruby("#{REPLACE}; p require('old'), require('old/part'), WHO", env)
      assert_equal "false\ntrue\n\"old\"\n", out, err
    end
    out, = ruby("#{REPLACE}; p WHO", { "WIRELOOM_DROP_IN_OTHER" => "0" })
    assert_equal "\"new\"\n", out
  end

  def test_refuses_to_mix_with_the_original
    _, err, status = ruby("require 'old/part'; #{REPLACE}")
    refute status.success?
    assert_match(%r{wireloom: old/part of old is loaded already; require "wireloom/drop_in/old" before}, err)
  end
end
