# frozen_string_literal: true

require_relative "lib/wireloom/version"

# In the repository the extension finds the Rust crates two folders up; `rake gem` packs them beside it, and `rake native` packs
# the compiled extension instead. `gem build` does neither, and refuses because ext/wireloom/vendor/Cargo.toml is missing.
Gem::Specification.new do |spec|
  spec.name = "wireloom"
  spec.version = Wireloom::VERSION
  spec.summary = "WebSocket and HTTP/2 in Rust, without I/O, and drop-ins for websocket-driver, protocol-websocket, http-2 and protocol-hpack"
  spec.description = "The protocol cores of Wireloom for Ruby: WebSocket (RFC 6455, permessage-deflate), HTTP/2 (RFC 9113) " \
                     "and HPACK as state machines: pass in the bytes that arrived, and take events and the bytes to write. With " \
                     "replacements for websocket-driver, protocol-websocket, http-2 and protocol-hpack behind one require each."
  spec.authors = ["The Wireloom developers"]
  spec.licenses = ["MIT", "Apache-2.0"]
  spec.required_ruby_version = ">= 3.1"
  spec.files = Dir.chdir(__dir__) do
    Dir["lib/**/*.rb", "sig/**/*.rbs", "sig_drop_in/*.rbs", "guides/**/*.md", "README.md", "CHANGELOG.md",
        "ext/wireloom/{Cargo.toml,Cargo.lock,extconf.rb,rustfmt.toml}", "ext/wireloom/src/**/*.rs"] +
      ["ext/wireloom/vendor/Cargo.toml"]
  end
  spec.require_paths = ["lib"]
  spec.extensions = ["ext/wireloom/extconf.rb"]
  home = File.read(File.expand_path("../Cargo.toml", __dir__))[/^repository = "(.*)"$/, 1]
  spec.homepage = home
  spec.metadata = {
    "homepage_uri" => home,
    "source_code_uri" => "#{home}/tree/main/ruby",
    "changelog_uri" => "#{home}/blob/main/ruby/CHANGELOG.md",
    "documentation_uri" => "https://rubydoc.info/gems/wireloom",
    "bug_tracker_uri" => "#{home}/issues",
    "funding_uri" => "https://github.com/sponsors/wireloom",
    "rubygems_mfa_required" => "true"
  }
end
