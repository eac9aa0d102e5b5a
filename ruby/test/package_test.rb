# frozen_string_literal: true

require_relative "test_helper"
require "fileutils"
require "open3"
require "rbconfig"
require "rubygems/package"
require "tmpdir"

# The gems that `rake gem` and `rake native` pack, installed where no other gem is.
class PackageTest < Wireloom::TestCase
  GEM = File.expand_path("..", __dir__)
  USE = <<~RUBY
    require "wireloom"
    decoder = Wireloom::HPACK::Decoder.new
    p decoder.decode(Wireloom::HPACK::Encoder.new.encode([["a", "b"]]))
    p Wireloom::WebSocket::Client.new("ws://localhost/").take_output.lines.first
    require "wireloom/drop_in/websocket_driver"
    require "wireloom/drop_in/protocol_websocket"
    require "wireloom/drop_in/http_2"
    p WebSocket::Driver::Hybi, Protocol::WebSocket::Framer, HTTP2::Client
    puts $LOADED_FEATURES.grep(/wireloom\\.(so|bundle)\\z/), Gem.loaded_specs.keys.grep_v("wireloom") - ENV["OTHERS"].split
  RUBY

  def setup
    lacks "rake is not installed: gem install rake" unless system(RbConfig.ruby, "-S", "rake", "--version", out: File::NULL, err: File::NULL)
    @home = Dir.mktmpdir
  end

  def teardown
    FileUtils.rm_rf(@home) if @home
  end

  def run_command(*command, env: {}, folder: GEM)
    out, status = Open3.capture2e({ "RUBYLIB" => nil, "RUBYOPT" => nil }.merge(env), *command, chdir: folder)
    assert status.success?, "#{command.join(" ")}\n#{out.lines.last(40).join}"
    out
  end

  # Installs the gem into an empty GEM_HOME, by means of what +env+ says, and uses it there.
  def install_and_use(path, env = {})
    alone = { "GEM_HOME" => @home, "GEM_PATH" => @home }
    run_command(RbConfig.ruby, "-S", "gem", "install", "--local", "--no-document", path, env: alone.merge(env), folder: @home)
    others = Gem::Specification.select(&:default_gem?).map(&:name).join(" ")
    out = run_command(RbConfig.ruby, "-W0", "-e", USE, env: alone.merge("OTHERS" => others), folder: @home).lines(chomp: true)
    assert_equal ['[["a", "b"]]', '"GET / HTTP/1.1\r\n"', "WebSocket::Driver::Hybi", "Protocol::WebSocket::Framer", "HTTP2::Client"], out[0, 5]
    assert out[5].start_with?(@home), out[5]
    assert_nil out[6], "another gem is needed"
    installed = File.join(@home, "gems", Gem::Package.new(path).spec.full_name)
    refute_path_exists File.join(installed, "ext/wireloom/target")
    %w[README.md LICENSE-MIT LICENSE-APACHE sig/web_socket.rbs].each do |name|
      assert_path_exists File.join(installed, name)
    end
  end

  def pack(task)
    path = run_command(RbConfig.ruby, "-S", "rake", task).lines(chomp: true).last
    assert_path_exists path
    path
  end

  def test_the_gem_for_this_platform_installs_without_a_compiler
    # Neither cargo nor make nor cc is used.
    blind = File.join(@home, "bin")
    FileUtils.mkdir_p(blind)
    %w[cargo make cc].each { |name| File.write(File.join(blind, name), "#!/bin/sh\nexit 1\n", perm: 0o755) }
    install_and_use(pack("native"), "PATH" => "#{blind}:#{ENV["PATH"]}")
  end

  def test_gem_build_refuses
    out, status = Open3.capture2e(RbConfig.ruby, "-S", "gem", "build", "wireloom.gemspec", "-o", File.join(@home, "x.gem"), chdir: GEM)
    refute status.success?
    assert_includes out, "ext/wireloom/vendor/Cargo.toml"
  end

  def test_a_native_gem_says_where_it_runs
    path = pack("native")
    spec = Gem::Package.new(path).spec
    # RubyGems before 3.3.22 reads no C library from the name.
    assert_match(/-linux-(gnu|musl)\.gem\z/, path) if RUBY_PLATFORM.include?("linux")
    version = Gem::Version.new(RUBY_VERSION)
    assert spec.required_ruby_version.satisfied_by?(version)
    refute spec.required_ruby_version.satisfied_by?(Gem::Version.new("#{version.segments[0]}.#{version.segments[1] + 1}.0"))
    refute spec.required_ruby_version.satisfied_by?(Gem::Version.new("#{version.segments[0]}.#{version.segments[1] - 1}.9"))
  end

  def test_a_native_gem_without_an_extension_in_between_is_refused
    folder = File.join(@home, "built")
    %w[3.1 3.3].each do |name|
      FileUtils.mkdir_p(File.join(folder, name))
      File.write(File.join(folder, name, "wireloom.#{RbConfig::CONFIG["DLEXT"]}"), "")
    end
    out, status = Open3.capture2e({ "EXTENSIONS" => folder }, RbConfig.ruby, "-S", "rake", "native", chdir: GEM)
    refute status.success?
    assert_includes out, "no extension for Ruby 3.2"
  end

  def test_an_extension_for_another_platform_is_refused
    skip "no ELF files" unless RUBY_PLATFORM.include?("linux")
    other = RUBY_PLATFORM.start_with?("aarch64") ? "x86_64-linux-gnu" : "aarch64-linux-gnu"
    out, status = Open3.capture2e({ "PLATFORM" => other }, RbConfig.ruby, "-S", "rake", "native", chdir: GEM)
    refute status.success?
    assert_match(/^wireloom: .* is for #{RUBY_PLATFORM[/\A[^-]+/]}-linux-(gnu|musl), not for #{other}; `rake cross` builds/, out)
  end

  def cross(**env)
    out, status = Open3.capture2e(env.transform_keys(&:to_s), RbConfig.ruby, "-S", "rake", "cross", chdir: GEM)
    refute status.success?
    out
  end

  def test_cross_compilation_names_the_missing_part
    assert_match(/^wireloom: PLATFORM must be one of .*aarch64-linux-gnu/, cross)
    assert_match(/^wireloom: ROOT must be a folder with the root of a aarch64-linux-musl system/, cross(PLATFORM: "aarch64-linux-musl"))
    assert_match(/^wireloom: no Ruby with headers in /, cross(PLATFORM: "aarch64-linux-musl", ROOT: @home))
    # This system's own root, and no tools.
    tools = File.join(@home, "bin")
    FileUtils.mkdir_p(tools)
    File.write(File.join(tools, "rustc"), "#!/bin/sh\necho #{@home}\n", perm: 0o755)
    skip "no headers of Ruby under /" unless File.file?(File.join(RbConfig::CONFIG["rubyhdrdir"], "ruby.h")) && RbConfig::CONFIG["prefix"] == "/usr"
    path = "#{tools}:#{ENV["PATH"]}"
    out = cross(PLATFORM: "x86_64-linux-musl", ROOT: "/", PATH: path)
    assert_match(/^wireloom: the standard library for x86_64-unknown-linux-musl is missing: rustup target add x86_64-unknown-linux-musl/, out)
    FileUtils.touch(File.join(@home, "libstd-1.rlib"))
    File.write(File.join(tools, "aarch64-linux-gnu-gcc"), "#!/bin/sh\n", perm: 0o755)
    if RUBY_PLATFORM.start_with?("x86_64-linux")
      out = cross(PLATFORM: "aarch64-linux-gnu", ROOT: "/", PATH: path)
      assert_match(/^wireloom: Ruby [\d.]+ in ROOT is for x86_64-linux-(gnu|musl), not for aarch64-linux-gnu/, out)
    end
    out = cross(PLATFORM: "aarch64-linux-musl", ROOT: "/", PATH: path)
    assert_match(/^wireloom: no linker for aarch64-unknown-linux-musl: install aarch64-linux-musl-gcc/, out)
  end

  def test_the_gem_as_source_builds_and_installs
    install_source("WIRELOOM_PLAIN_CARGO" => "1")
  end

  def test_the_gem_as_source_builds_by_rb_sys
    rb_sys = Gem::Specification.find_all_by_name("rb_sys").first || limited("the gem rb_sys is not installed: gem install rb_sys")
    assert_includes install_source("GEM_PATH" => "#{@home}:#{rb_sys.base_dir}"), "generating"
  end

  # The crates of the package without optimization, which takes most of the time. Their dependencies are built already.
  PROFILE = %w[wireloom-ws wireloom-http2 wireloom-ruby].map { |name| "[profile.release.package.#{name}]\nopt-level = 0\n" }.join

  # Builds with what is built already, which RubyGems and rb_sys would clean. Returns what make said.
  def install_source(env)
    FileUtils.mkdir_p(File.join(@home, ".cargo"))
    File.write(File.join(@home, ".cargo/config.toml"), PROFILE)
    target = File.expand_path(ENV["CARGO_TARGET_DIR"] || "tmp/target", GEM)
    make = "make --old-file=clean RB_SYS_CARGO_TARGET_DIR=#{target} RUBYGEMS_CLEAN_DIRS="
    release = File.join(target, "release")
    keeping(Dir[File.join(release, "deps/{lib,}wireloom.*"), File.join(release, ".fingerprint/wireloom-ruby-*/*")]) do
      install_and_use(pack("gem"), { "MAKE" => make }.merge(env))
    end
    File.read(Dir[File.join(@home, "extensions/**/gem_make.out")].fetch(0))
  end

  # Puts the files back as they were. Cargo has the same ones for this build and for that of the checkout, and would compile the
  # extension anew for the tests that follow.
  def keeping(files)
    kept = files.each_with_index.to_h { |path, at| [path, File.join(@home, "kept-#{at}")] }
    kept.each { |path, copy| FileUtils.cp(path, copy, preserve: true) }
    yield
  ensure
    kept&.each do |path, copy|
      FileUtils.rm_f(path)
      FileUtils.cp(copy, path, preserve: true)
    end
  end
end
