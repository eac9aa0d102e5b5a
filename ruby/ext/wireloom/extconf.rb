# frozen_string_literal: true

# Writes the Makefile that builds the extension with cargo: by rb_sys when that gem is there, else by plain cargo.
require "mkmf"

def give_up(message)
  abort "wireloom: #{message}"
end

NEEDS = "building it needs Rust 1.89 or later (https://rustup.rs), a C compiler, the headers of Ruby and libclang " \
        "(Debian: ruby-dev libclang-dev); a gem for your platform needs none of them"

SAY_NEEDS = "echo 'wireloom: #{NEEDS}'"

cargo = ENV["CARGO"] || find_executable("cargo")
give_up "cargo is missing; #{NEEDS}" unless cargo
version =
  begin
    IO.popen([cargo, "--version"], err: File::NULL, &:read)[/\d+\.\d+/]
  rescue SystemCallError
    nil
  end
give_up "#{cargo} does not run; #{NEEDS}" unless version
give_up "cargo #{version} is too old; #{NEEDS}" if Gem::Version.new(version) < Gem::Version.new("1.89")

# One for each version of Ruby, as in a compiled gem.
PREFIX = "wireloom/#{RUBY_VERSION[/\d+\.\d+/]}"

begin
  raise LoadError if ENV["WIRELOOM_PLAIN_CARGO"]

  require "rb_sys/mkmf"
  create_rust_makefile("#{PREFIX}/wireloom") do |config|
    config.profile = ENV.fetch("RB_SYS_CARGO_PROFILE", :release).to_sym
    config.extra_cargo_args = ["--locked"]
  end
  # A build that fails says what it needs here as well.
  makefile = File.read("Makefile")
  File.write("Makefile", makefile.sub(/^\t\$\(CARGO\) .*$/) { |cargo| "#{cargo} || { #{SAY_NEEDS}; exit 1; }" })
rescue LoadError
  # Undefined symbols are the interpreter's, which loads the extension; the linker of macOS needs an option for that.
  link_args = RbConfig::CONFIG["host_os"].match?(/darwin/) ? "-C link-arg=-Wl,-undefined,dynamic_lookup" : ""
  built = "#{RbConfig::CONFIG["host_os"].match?(/mingw|mswin/) ? "" : "lib"}wireloom.#{RbConfig::CONFIG["SOEXT"] || "so"}"
  lines = configuration($srcdir)
  lines << <<~MAKEFILE
    CARGO = #{cargo}
    # The name that rb_sys has for it.
    RB_SYS_CARGO_TARGET_DIR = $(CURDIR)/target
    DLLIB = wireloom.#{RbConfig::CONFIG["DLEXT"]}
    target_prefix = /#{PREFIX}
    RUBYARCHDIR = $(sitearchdir)$(target_prefix)

    all: $(DLLIB)

    # cargo knows best whether there is something to do.
    $(DLLIB): FORCE
    \tRUBY="#{RbConfig.ruby}" $(CARGO) rustc --locked --release --lib --manifest-path "$(srcdir)/Cargo.toml" \\
    \t\t--target-dir "$(RB_SYS_CARGO_TARGET_DIR)" -- #{link_args} || { #{SAY_NEEDS}; exit 1; }
    \tcp "$(RB_SYS_CARGO_TARGET_DIR)/release/#{built}" "$(DLLIB).new" && mv -f "$(DLLIB).new" "$(DLLIB)"

    install: install-so
    install-so: $(DLLIB)
    \tmkdir -p "$(RUBYARCHDIR)"
    \t$(INSTALL_PROG) "$(DLLIB)" "$(RUBYARCHDIR)/$(DLLIB)"
    # An installed gem keeps nothing of what cargo built.
    \trm -rf "$(CURDIR)/target"

    clean:
    \trm -rf "$(RB_SYS_CARGO_TARGET_DIR)" "$(DLLIB)" "$(DLLIB).new"

    distclean realclean: clean
    \trm -f Makefile mkmf.log

    FORCE:
    .PHONY: all install install-so clean distclean realclean FORCE
  MAKEFILE
  File.write("Makefile", lines.join)
end
