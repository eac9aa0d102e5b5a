# frozen_string_literal: true

require_relative "test_helper"
require "fileutils"
require "open3"
require "rbconfig"
require "tmpdir"

# The packages, installed where nothing else is. TARGET names cargo's folder, so that the source gem builds no dependency twice.
class InstallTest < Wireloom::TestCase
  ROOT = File.expand_path("..", __dir__)
  TRY = <<~RUBY
    require "wireloom"
    client = Wireloom::WebSocket::Client.new("ws://localhost")
    puts client.take_output.lines.first
    require "wireloom/drop_in/websocket_driver"
    puts WebSocket::Driver.instance_method(:emit).source_location[0]
  RUBY

  def run!(env, *command)
    out, status = Open3.capture2e(env, *command)
    assert status.success?, "#{command.join(" ")}: #{out}"
    out
  end

  def install(package)
    Dir.mktmpdir do |home|
      env = { "GEM_HOME" => home, "GEM_PATH" => home, "RUBYOPT" => nil, "RUBYLIB" => nil,
              "MAKEFLAGS" => ENV["TARGET"] && "CARGO_TARGET=#{File.expand_path(ENV["TARGET"])}" }
      run!(env, "gem", "install", "--local", "--no-document", package)
      out = run!(env, RbConfig.ruby, "-e", TRY)
      assert_equal "GET / HTTP/1.1\r\n", out.lines[0]
      assert_includes out, home
      yield home
    end
  end

  def package(task)
    out = run!({}, "rake", "-f", File.join(ROOT, "Rakefile"), task)
    File.join(ROOT, out[%r{^(pkg/.*\.gem)$}, 1])
  end

  def test_the_precompiled_gem
    install(package("gem:native")) do |home|
      refute_empty Dir[File.join(home, "gems/wireloom-*/lib/wireloom/*/wireloom.*")]
      assert_empty Dir[File.join(home, "gems/wireloom-*/ext/**/*.rs")]
    end
  end

  def test_the_source_gem
    install(package("gem")) do |home|
      refute_empty Dir[File.join(home, "{extensions,gems}/**/wireloom/wireloom.{so,bundle}")]
    end
  end

  def test_without_cargo
    Dir.mktmpdir do |folder|
      env = { "PATH" => folder, "CARGO" => nil }
      out, status = Open3.capture2e(env, RbConfig.ruby, File.join(ROOT, "ext/wireloom/extconf.rb"), chdir: folder)
      refute status.success?
      assert_match(/^wireloom: cargo is missing.*rustup/, out)
    end
  end

  def test_the_makefile
    Dir.mktmpdir do |folder|
      run!({ "WIRELOOM_PLAIN_CARGO" => "1" }, RbConfig.ruby, "-C", folder, File.join(ROOT, "ext/wireloom/extconf.rb"))
      out = run!({}, "make", "-C", folder, "-n", "install", "DESTDIR=/somewhere")
      assert_includes out, "--locked"
      assert_match(%r{mkdir -p "/somewhere/.*/wireloom"}, out)
      FileUtils.mkdir_p(File.join(folder, "target/release"))
      run!({}, "make", "-C", folder, "clean")
      refute File.exist?(File.join(folder, "target"))
    end
  end
end
