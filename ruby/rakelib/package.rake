# frozen_string_literal: true

require "fileutils"
require "rubygems/package"

# Packs the gem into pkg/: as source with the crates that it is built from beside it, or with the extension compiled.
module Package
  ROOT = File.expand_path("../..", __dir__)
  GEM = File.join(ROOT, "ruby")
  OUT = File.join(GEM, "pkg")
  LICENCES = %w[LICENSE-MIT LICENSE-APACHE].freeze
  CRATES = %w[ws http2].freeze
  VENDOR = "ext/wireloom/vendor"
  # All that were released, in order: a compiled gem leaves none out between its oldest and its newest.
  RUBIES = %w[3.1 3.2 3.3 3.4 4.0].freeze
  # The field e_machine of an ELF file.
  MACHINES = { 62 => "x86_64", 183 => "aarch64" }.freeze

  module_function

  def source
    pack("source") do |tree, spec|
      spec.files += vendor(tree)
    end
  end

  # +extensions+: the compiled extension for each version of Ruby, such as "3.1".
  def native(extensions)
    abort "wireloom: no compiled extension to pack" if extensions.empty?
    unknown = extensions.keys - RUBIES
    abort "wireloom: not a Ruby that gems are made for: #{unknown.first}" unless unknown.empty?
    positions = extensions.keys.map { |version| RUBIES.index(version) }.sort
    missing = [*positions.first..positions.last] - positions
    abort "wireloom: no extension for Ruby #{RUBIES[missing.first]}, which the gem would install on" unless missing.empty?
    extensions.each_value { |path| check(path) }

    pack("native") do |tree, spec|
      spec.files.reject! { |path| path.start_with?("ext/") }
      spec.extensions.clear
      spec.platform = platform
      oldest, newest = extensions.keys.minmax_by { |version| Gem::Version.new(version) }
      spec.required_ruby_version = [">= #{oldest}", "< #{Gem::Version.new("#{newest}.0").bump}.dev"]
      extensions.each do |version, path|
        to = "lib/wireloom/#{version}/#{File.basename(path)}"
        copy(path, File.join(tree, to))
        spec.files << to
      end
    end
  end

  # PLATFORM in the environment, such as aarch64-linux-musl for extensions that were built there, or this machine's: on Linux
  # with the C library, because RubyGems takes a gem without one for both.
  def platform
    # In parts: RubyGems before 3.3.22 drops the C library from a name.
    return Gem::Platform.new(ENV["PLATFORM"].split("-", 3)) if ENV["PLATFORM"]

    local = Gem::Platform.local
    library = local.version&.slice(/musl|ucrt/) || ("gnu" if local.os == "linux")
    Gem::Platform.new([local.cpu, local.os, library])
  end

  # Refuses an extension that is for another processor or C library than the gem.
  def check(path)
    built = built_for(path) if platform.os == "linux"
    return if built.nil? || built == platform.to_s

    abort "wireloom: #{path} is for #{built}, not for #{platform}; `rake cross` builds for other platforms, and " \
          "EXTENSIONS names a folder with extensions that were built elsewhere"
  end

  # The platform of an ELF file, where its processor is known.
  def built_for(path)
    bytes = File.binread(path)
    return "an unknown platform" unless bytes.start_with?("\x7fELF".b)

    cpu = MACHINES[bytes.unpack1("S<", offset: 18)] or return
    library = bytes.include?("\0libc.so.6\0".b) ? "gnu" : "musl"
    "#{cpu}-linux-#{library}"
  end

  # Copies the gem's files into a folder, lets the block add to them and to the specification, and packs them.
  def pack(name)
    tree = File.join(OUT, name)
    FileUtils.rm_rf(tree)
    spec = Gem::Specification.load(File.join(GEM, "wireloom.gemspec")).dup
    spec.files -= [File.join(VENDOR, "Cargo.toml")]
    spec.files.each { |path| copy(File.join(GEM, path), File.join(tree, path)) }
    LICENCES.each { |licence| copy(File.join(ROOT, licence), File.join(tree, licence)) }
    spec.files += LICENCES
    yield tree, spec
    packed = File.join(OUT, spec.file_name)
    Dir.chdir(tree) { Gem::Package.build(spec, false, false, packed) }
    FileUtils.rm_rf(tree)
    puts packed
  end

  # The crates as they are in the repository, without their tests, under a workspace with what they inherit.
  def vendor(tree)
    files = CRATES.flat_map do |crate|
      folder = File.join(ROOT, "crates", crate)
      # The page of a crate is its README.
      sources = [*Dir[File.join(folder, "src/**/*.rs")], File.join(folder, "README.md")]
      sources.each { |path| copy(path, File.join(tree, VENDOR, crate, path.delete_prefix("#{folder}/"))) }
      manifest = sections(File.join(folder, "Cargo.toml")) { |title| !title.end_with?("dev-dependencies") }
      write(File.join(tree, VENDOR, crate, "Cargo.toml"), manifest)
      [*sources.map { |path| "#{crate}/#{path.delete_prefix("#{folder}/")}" }, "#{crate}/Cargo.toml"]
    end
    inherited = sections(File.join(ROOT, "Cargo.toml")) { |title| title.start_with?("workspace.") }
    write(File.join(tree, VENDOR, "Cargo.toml"), "[workspace]\nresolver = \"3\"\nmembers = #{CRATES}\n\n#{inherited}")
    build = File.join(tree, "ext/wireloom/Cargo.toml")
    write(build, File.read(build).gsub("../../../crates/", "vendor/"))
    ["Cargo.toml", *files].map { |path| File.join(VENDOR, path) }
  end

  # The sections of a manifest whose titles the block wants.
  def sections(path)
    File.read(path).split(/^(?=\[)/).select { |section| yield section[/\A\[(.*)\]$/, 1].to_s }.join
  end

  def copy(from, to)
    write(to, File.binread(from))
  end

  def write(path, text)
    FileUtils.mkdir_p(File.dirname(path))
    File.binwrite(path, text)
  end
end

desc "Pack the gem as source into pkg/, with the Rust crates in it: building it needs cargo, libclang and the network"
task(:gem) { Package.source }

desc "Pack a gem for this platform into pkg/, compiled (EXTENSIONS=folder with 3.1/wireloom.so and so on for several Rubies, PLATFORM=name of theirs)"
task native: ENV["EXTENSIONS"] ? [] : [:compile] do
  folder = ENV["EXTENSIONS"]
  found = Dir[File.join(folder, "*", File.basename(EXTENSION))].to_h { |path| [File.basename(File.dirname(path)), path] } if folder
  Package.native(found || { RUBY_VERSION[/\d+\.\d+/] => EXTENSION })
end
