# frozen_string_literal: true

require_relative "websocket_driver_helper"
require "open3"
require "rbconfig"

class WebSocketDriverPlaceTest < Wireloom::TestCase
  LIB = File.expand_path("../../lib", __dir__)

  def ruby(script, env = {})
    out, err, status = Open3.capture3(env, RbConfig.ruby, "-I#{LIB}", "-e", script)
    assert status.success?, err
    out
  end

  def test_later_requires_find_it_loaded
    gap_of_the_original
    out = ruby(<<~RUBY)
      require "wireloom/drop_in/websocket_driver"
      p %w[websocket/driver websocket/http websocket_mask websocket/driver/hybi].map { |feature| require feature }
      p WebSocket::Driver::Hybi.private_constant?(:Codec) rescue p WebSocket::Driver::Hybi.const_source_location(:GUID)[0]
    RUBY
    assert_equal "[false, false, false, false]", out.lines[0].chomp
    assert_includes out, "wireloom/drop_in"
  end

  def test_it_is_switched_off
    gap_of_the_original
    out = ruby("require 'wireloom/drop_in/websocket_driver' rescue abort('missing'); p $LOADED_FEATURES.grep(/wireloom.so/)",
               { "WIRELOOM_DROP_IN_WEBSOCKET_DRIVER" => "0" })
    assert_equal "[]\n", out
  rescue Minitest::Assertion => e
    raise unless e.message.include?("websocket/driver")

    limited "websocket-driver is not installed"
  end

  def test_it_does_without_the_gem_of_extensions
    gap_of_the_original
    out = ruby(<<~RUBY)
      module Kernel
        alias_method :require_any, :require
        def require(feature)
          raise LoadError, feature if feature == "websocket/extensions"
          require_any(feature)
        end
      end
      require "wireloom/drop_in/websocket_driver"
      socket = Struct.new(:url, :written) { def write(bytes) = written << bytes }.new("ws://x/", [])
      driver = WebSocket::Driver.client(socket)
      driver.start
      puts socket.written
      begin
        driver.add_extension(Object.new)
      rescue LoadError => e
        puts e.message
      end
      ["", "a; b=1", 'a;b="c d", d', "a;;b", ";", "a b", "a=1"].each do |header|
        env = { "REQUEST_METHOD" => "GET", "HTTP_CONNECTION" => "Upgrade", "HTTP_UPGRADE" => "websocket", "HTTP_SEC_WEBSOCKET_KEY" => "x",
                 "HTTP_SEC_WEBSOCKET_VERSION" => "13", "HTTP_SEC_WEBSOCKET_EXTENSIONS" => header }
        server = WebSocket::Driver::Hybi.new(Struct.new(:env) { def write(bytes) = true }.new(env))
        server.on(:error) { |error| puts error.message }
        puts server.start ? "taken" : "refused"
      end
    RUBY
    assert_includes out, "GET / HTTP/1.1"
    assert_includes out, "add it to your Gemfile"
    assert_equal 3, out.scan(/^taken$/).size
    assert_equal 4, out.scan(/^refused$/).size
  end
end
