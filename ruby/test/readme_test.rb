# frozen_string_literal: true

require_relative "test_helper"
require "open3"
require "rbconfig"

# The examples of the README do what they say.
class ReadmeTest < Wireloom::TestCase
  LIB = File.expand_path("../lib", __dir__)
  EXAMPLES = File.read(File.expand_path("../README.md", __dir__)).scan(/^```ruby\n(.*?)^```$/m).flatten

  # Runs the example that contains +word+. Each line with an `# =>` prints its value.
  def run_example(word)
    example = EXAMPLES.find { |text| text.include?(word) } or flunk "no example has #{word}"
    script = example.gsub(/^(\S.*?)\s+# => .*$/) { "p(#{Regexp.last_match(1)})" }
    out, err, status = Open3.capture3(RbConfig.ruby, "-w", "-I#{LIB}", "-e", script)
    assert status.success?, err
    assert_empty err
    out.lines(chomp: true)
  end

  def test_web_socket
    open, message = run_example("WebSocket::Server.new")
    assert_match(/\A\[#<.*Open/, open)
    assert_equal '["Hello"]', message
  end

  def test_http2
    events = run_example("HTTP2::Server.new").last
    assert_match(/Response.*200.*Data.*"hello"/, events)
  end

  def test_hpack
    assert_equal ['[[":method", "GET"], ["x-trace", "1f2e"]]'], run_example("HPACK::Encoder")
  end

  def test_drop_in
    assert_equal "GET / HTTP/1.1", run_example("Driver.client").first
  end
end
