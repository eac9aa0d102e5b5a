# frozen_string_literal: true

require "fileutils"
require "json"
require "open3"
require "rbconfig"

# Builds the extension for another platform by cargo's cross compilation, for every Ruby in a root of that system, and packs the gem.
module Cross
  Platform = Struct.new(:target, :linkers, :packages)
  PLATFORMS = {
    "x86_64-linux-gnu" => Platform.new("x86_64-unknown-linux-gnu", %w[x86_64-linux-gnu-gcc], "gcc-x86-64-linux-gnu"),
    "aarch64-linux-gnu" => Platform.new("aarch64-unknown-linux-gnu", %w[aarch64-linux-gnu-gcc], "gcc-aarch64-linux-gnu"),
    "x86_64-linux-musl" => Platform.new("x86_64-unknown-linux-musl", %w[x86_64-linux-musl-gcc musl-gcc], "musl-tools"),
    "aarch64-linux-musl" => Platform.new("aarch64-unknown-linux-musl", %w[aarch64-linux-musl-gcc], "a cross compiler of musl.cc")
  }.freeze
  GEM = File.expand_path("..", __dir__)
  # Prints the RbConfig of another Ruby, whatever its version.
  RBCONFIG = <<~'RUBY'
    require "json"
    Object.__send__(:remove_const, :RbConfig) if defined?(RbConfig)
    $VERBOSE = nil
    path, = ARGV
    eval(File.read(path).sub(/^\s*RUBY_VERSION\b.*?\bor\s+raise\b.*?$/m, ""), TOPLEVEL_BINDING, path)
    print JSON.generate(RbConfig::CONFIG)
  RUBY

  module_function

  # @param name [String] a platform of RubyGems
  # @param roots [Array<String>] folders with that system's files, the headers of Ruby among them
  # @return [Hash{String => String}] the extension for each version of Ruby
  def build(name, roots)
    platform = PLATFORMS[name] or refuse("PLATFORM must be one of #{PLATFORMS.keys.join(", ")}")
    if roots.empty? || !roots.all? { |root| File.directory?(root) }
      refuse("ROOT must be a folder with the root of a #{name} system, Ruby and its headers in it, or several with a colon between them")
    end
    rubies = roots.flat_map { |root| configs(root).map { |version, config| [version, root, config] } }.uniq(&:first)
    refuse("no Ruby with headers in #{roots.join(", ")} (Debian: ruby-dev, Alpine: ruby-dev)") if rubies.empty?
    linker = check_tools(platform)
    rubies.each { |version, _, config| check_config(name, version, config) }
    rubies.to_h { |version, root, config| [version, compile(name, platform, linker, root, version, config)] }
  end

  # The oldest glibc to run on, such as 2.17: zig links against any, while Debian's linker takes the one of this system.
  def zig
    ENV["GLIBC"]
  end

  def refuse(message)
    abort "wireloom: #{message}"
  end

  # The linker, when everything is installed.
  def check_tools(platform)
    out, status = Open3.capture2e("rustc", "--print", "target-libdir", "--target", platform.target)
    unless status.success? && Dir[File.join(out.strip, "libstd-*")].any?
      refuse("the standard library for #{platform.target} is missing: rustup target add #{platform.target}")
    end
    if zig
      return "zig" if system("command -v cargo-zigbuild > /dev/null")

      refuse("cargo-zigbuild is missing, which GLIBC needs: pip install cargo-zigbuild ziglang")
    end
    platform.linkers.find { |linker| system("command -v #{linker} > /dev/null") } or
      refuse("no linker for #{platform.target}: install #{platform.linkers.first} (Debian: #{platform.packages})")
  rescue Errno::ENOENT
    refuse("rustc is missing (https://rustup.rs)")
  end

  # Refuses the headers of a Ruby that is for another processor or C library: they differ in more than names.
  def check_config(name, version, config)
    cpu, _, library = name.split("-")
    system = config["host_os"].include?("musl") ? "musl" : "gnu"
    return if config["host_cpu"] == cpu && system == library

    refuse("Ruby #{version} in ROOT is for #{config["host_cpu"]}-linux-#{system}, not for #{name}")
  end

  # The RbConfig of each Ruby whose headers are there, by its version.
  def configs(root)
    Dir[File.join(File.expand_path(root), "usr/{,local/}lib/{,*/}ruby/*/{,*/}rbconfig.rb")].filter_map do |path|
      out, status = Open3.capture2(RbConfig.ruby, "--disable-gems", "-e", RBCONFIG, path)
      config = JSON.parse(out) if status.success?
      [config["ruby_version"][/\d+\.\d+/], config] if config && File.file?(File.join(config["rubyhdrdir"], "ruby.h"))
    end.to_h
  end

  def compile(name, platform, linker, root, version, config)
    folder = File.join(GEM, "tmp/cross", name, version)
    FileUtils.mkdir_p(folder)
    env = config.compact.transform_keys { |key| "RBCONFIG_#{key}" }.merge(
      "RBCONFIG_CROSS_COMPILING" => "yes",
      "CARGO_TARGET_#{platform.target.upcase.tr("-", "_")}_LINKER" => (linker unless zig),
      "CC_#{platform.target.tr("-", "_")}" => (linker unless zig),
      "BINDGEN_EXTRA_CLANG_ARGS" => "--sysroot=#{File.expand_path(root)}",
      # libgcc_s is taken from ROOT, because that of Debian is for glibc.
      "RUSTFLAGS" => ("-Ctarget-feature=-crt-static -Lnative=#{File.expand_path("usr/lib", root)}" if name.end_with?("musl"))
    )
    build = zig ? %w[cargo-zigbuild zigbuild] : %w[cargo build]
    refuse("GLIBC is for platforms with glibc") if zig && !name.end_with?("gnu")
    command = build + %W[--locked --release --target #{[platform.target, *zig].join(".")} --target-dir #{File.join(folder, "target")}
                 --manifest-path #{File.join(GEM, "ext/wireloom/Cargo.toml")}]
    system(env, *command) or refuse("cargo failed for Ruby #{version}")
    built = File.join(folder, "wireloom.so")
    FileUtils.cp(File.join(folder, "target", platform.target, "release/libwireloom.so"), built)
    built
  end
end

desc "Pack a gem for another platform (PLATFORM=aarch64-linux-gnu, ROOT=folder with that system's root and its Rubies, or several with a colon between them)"
task :cross do
  Package.native(Cross.build(ENV["PLATFORM"], ENV["ROOT"].to_s.split(":")))
end
