# frozen_string_literal: true

require_relative "test_helper"
require "fileutils"
require "open3"
require "rbconfig"
require "tmpdir"

# The build of the extension before any of it is compiled.
class ExtconfTest < Wireloom::TestCase
  EXTCONF = File.expand_path("../ext/wireloom/extconf.rb", __dir__)

  def setup
    @folder = Dir.mktmpdir
  end

  def teardown
    FileUtils.rm_rf(@folder)
  end

  def extconf(env = {})
    Open3.capture2e(env, RbConfig.ruby, EXTCONF, chdir: @folder)
  end

  # A program that says +text+.
  def program(name, text, status = 0)
    path = File.join(@folder, name)
    File.write(path, "#!/bin/sh\necho '#{text}'\nexit #{status}\n", perm: 0o755)
    path
  end

  def test_says_that_cargo_is_missing
    out, status = extconf("PATH" => @folder, "CARGO" => nil)
    refute status.success?
    assert_match(%r{^wireloom: cargo is missing; building it needs Rust 1\.89 or later \(https://rustup\.rs\)}, out)
  end

  def test_says_that_cargo_is_too_old
    out, status = extconf("CARGO" => program("cargo", "cargo 1.63.0 (fd9c4297c 2022-07-01)"))
    refute status.success?
    assert_match(/^wireloom: cargo 1\.63 is too old; /, out)
  end

  def test_says_that_cargo_does_not_run
    out, status = extconf("CARGO" => File.join(@folder, "cargo"))
    refute status.success?
    assert_match(/^wireloom: .*cargo does not run; building it needs Rust/, out)
  end

  # How a Makefile is written: by plain cargo, and by rb_sys where it is installed.
  def each_way
    yield "WIRELOOM_PLAIN_CARGO" => "1"
    yield "WIRELOOM_PLAIN_CARGO" => nil if Gem::Specification.find_all_by_name("rb_sys").any?
  end

  def test_says_what_is_needed_when_cargo_fails
    cargo = program("cargo", "cargo 1.90.0", "$([ $# = 1 ] && echo 0 || echo 1)")
    each_way do |env|
      _, status = extconf(env.merge("CARGO" => cargo))
      assert status.success?
      out, status = Open3.capture2e({ "CARGO" => cargo }, "make", chdir: @folder)
      refute status.success?
      assert_match(/^wireloom: building it needs Rust .*libclang/, out)
      refute_path_exists File.join(@folder, "wireloom.#{RbConfig::CONFIG["DLEXT"]}")
    end
  end

  # Installs by a cargo that only leaves a file where the real one does.
  def test_installs_under_destdir_and_cleans
    cargo = File.join(@folder, "cargo")
    soext = RbConfig::CONFIG["SOEXT"] || "so"
    File.write(cargo, <<~SHELL, perm: 0o755)
      #!/bin/sh
      [ "$1" != --version ] || { echo cargo 1.90.0; exit; }
      case "$*" in *--locked*) ;; *) exit 1 ;; esac
      case "$*" in *--release* | *"--profile release"*) ;; *) exit 1 ;; esac
      mkdir -p '#{@folder}/target/release'
      echo compiled > '#{@folder}/target/release/libwireloom.#{soext}'
    SHELL
    each_way { |env| install_and_clean(env.merge("CARGO" => cargo)) }
  end

  def install_and_clean(env)
    _, status = extconf(env)
    assert status.success?
    root = File.join(@folder, "root")
    out, status = Open3.capture2e(env, "make", "install", "DESTDIR=#{root}", chdir: @folder)
    assert status.success?, out
    installed = File.join(root, RbConfig::CONFIG["sitearchdir"], "wireloom/#{RUBY_VERSION[/\d+\.\d+/]}/wireloom.#{RbConfig::CONFIG["DLEXT"]}")
    assert_equal "compiled\n", File.read(installed)
    FileUtils.rm_rf(root)
    assert system("make", "clean", chdir: @folder, out: File::NULL)
    assert_empty Dir[File.join(@folder, "**/*wireloom.*")]
    assert system("make", "distclean", chdir: @folder, out: File::NULL)
    refute_path_exists File.join(@folder, "Makefile")
  end
end
