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
        error = assert_raises(Wireloom::InternalError) { Wireloom::InternalError.__send__(:provoke) }
        assert_equal "a bug in wireloom: provoked", error.message
      end
    end
  end

  # Runs the command of a gem in the folder of this one.
  def run_gem(gem, *arguments)
    out, status = try_gem(gem, *arguments)
    assert status.success?, out
  end

  def try_gem(gem, *arguments)
    _, _, status = Open3.capture3(RbConfig.ruby, "-e", "gem '#{gem}'")
    unless status.success?
      missing = "the gem #{gem} is not installed: gem install #{gem}"
      gem == "rbs" ? lacks(missing) : limited(missing)
    end
    script = "gem '#{gem}'; load Gem.bin_path('#{gem}', '#{gem}')"
    Open3.capture2e(RbConfig.ruby, "-e", script, "--", *arguments, chdir: File.expand_path("..", __dir__))
  end

  def test_signatures_are_valid
    run_gem("rbs", "-I", "sig", "-I", "sig_drop_in", "validate")
  end

  # A project has the signatures of both gems: RBS reads the folder `sig` of each gem in the lock file.
  def test_signatures_do_not_clash_with_those_of_the_originals
    originals = %w[websocket-driver protocol-websocket http-2 protocol-http2 protocol-hpack].filter_map do |name|
      folder = File.join(Gem::Specification.find_by_name(name).full_gem_path, "sig")
      # An older rbs cannot read them all.
      folder if File.directory?(folder) && try_gem("rbs", "parse", *Dir[File.join(folder, "**/*.rbs")]).last.success?
    rescue Gem::MissingSpecError
      nil
    end
    Dir.mktmpdir do |folder|
      # Declarations of http-2, which may be missing or packaged without its signatures.
      File.write(File.join(folder, "http_2.rbs"), <<~RBS)
        module HTTP2
          VERSION: String
          type frame = untyped
          module Error
            class Error < StandardError
              def initialize: (*untyped) -> void
            end
          end
          class Connection
            def receive: (String data) -> void
          end
        end
      RBS
      originals << folder if originals.none? { |path| Dir[File.join(path, "**/*.rbs")].any? { |file| File.read(file).match?(/^module HTTP2\b/) } }
      run_gem("rbs", "-I", "sig", *originals.flat_map { |path| ["-I", path] }, "validate")
    end
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

  # Garbage is collected at any time, also while the extension looks at how this Ruby keeps Strings.
  def test_loads_while_garbage_is_collected
    script = 'GC.stress = true; require "wireloom/#{RUBY_VERSION[/\d+\.\d+/]}/wireloom"'
    out, status = Open3.capture2e(RbConfig.ruby, "-I#{LIB}", "-e", script)
    assert status.success?, out
  end

  # An extension that was compiled for another Ruby must not be loaded: the process would crash.
  def test_does_not_load_what_was_compiled_for_another_ruby
    Dir.mktmpdir do |folder|
      FileUtils.cp_r(File.join(LIB, "."), folder)
      built = Dir[File.join(folder, "wireloom/#{RUBY_VERSION[/\d+\.\d+/]}/wireloom.{so,bundle}")].fetch(0)
      # Where other versions of Ruby, and older checkouts have it.
      ["", "2.7", "9.0"].each do |name|
        FileUtils.mkdir_p(File.join(folder, "wireloom", name))
        FileUtils.cp(built, File.join(folder, "wireloom", name, File.basename(built)))
      end
      File.delete(built)
      _, err, status = Open3.capture3(RbConfig.ruby, "-I#{folder}", "-e", "require 'wireloom'")
      assert_equal 1, status.exitstatus, err
      assert_match(/for Ruby #{RUBY_VERSION} .*or `rake compile` with this Ruby in a checkout.*\(LoadError\)/, err)
    end
  end
end
