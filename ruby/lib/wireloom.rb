# frozen_string_literal: true

require_relative "wireloom/version"

begin
  # There is one extension for each version of Ruby: on another it would crash.
  require "wireloom/#{RUBY_VERSION[/\d+\.\d+/]}/wireloom"
rescue LoadError => e
  raise LoadError,
        "wireloom: its native extension for Ruby #{RUBY_VERSION} on #{RUBY_PLATFORM} is missing or does not load; " \
        "install Rust (https://rustup.rs) and libclang, then run `gem pristine wireloom`, or `rake compile` with this Ruby in a checkout " \
        "(#{e.message})"
end

require_relative "wireloom/web_socket"
require_relative "wireloom/http2"
require_relative "wireloom/hpack"

module Wireloom
  # Of the drop-ins.
  private_constant :DriverCodec, :Deflater, :Inflater
end

# Looks the classes up that the native part makes objects of, so that Ractors find them.
Wireloom.complete(Wireloom)
Wireloom.singleton_class.undef_method(:complete)
