# frozen_string_literal: true

require_relative "test_helper"
require "open3"
require "rbconfig"

# Listeners and constructors that never return, in a Fiber that is abandoned, and those and conversions that return several times, by a continuation: what
# the calls below them hold in memory outside of Ruby's would be lost, or freed several times.
class ListenerReturnTest < Wireloom::TestCase
  # Each defines `work`, which calls a listener with something of 160 kB or more under way.
  CALLS = {
    "a message of websocket-driver, in input that was kept" => <<~'RUBY',
      require "wireloom/drop_in/websocket_driver"
      type = Wireloom.const_get(:DriverCodec)
      emitter = Class.new { include WebSocket::Driver::EventEmitter }
      input = "\x81\x01a".b * 60_000
      work = lambda do |pause|
        codec, driver = type.new(WebSocket::Driver::MessageEvent, 1 << 20, false, false, false), emitter.new
        # The listeners are examined at the first message, and the result is cached.
        messages = 0
        driver.on(:message) { pause.call if (messages += 1) == 5 }
        codec.parse(input[0, 1], driver)
        codec.parse(input[1..], driver)
      end
    RUBY
    "a block of http-2 that is received" => <<~'RUBY',
      require "wireloom/drop_in/http_2"
      block = "x" * 180_000
      head = [block.bytesize >> 8, block.bytesize & 0xff, 1, 4, 1].pack("nCCCN")
      input = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".b + head + block
      work = lambda do |pause|
        server = HTTP2::Server.new(settings_max_frame_size: 1 << 18)
        server.on(:frame_received) { |frame| pause.call if frame[:type] == :headers }
        server << input
      end
    RUBY
    "a block of http-2 that breaks the rules" => <<~'RUBY',
      require "wireloom/drop_in/http_2"
      block = "x" * 180_000
      frame = ->(type, flags, stream, bytes) { [bytes.bytesize >> 8, bytes.bytesize & 0xff, type, flags, stream].pack("nCCCN") + bytes }
      input = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".b + frame.(1, 0, 1, block) + frame.(9, 0, 3, block)
      work = lambda do |pause|
        server = HTTP2::Server.new(settings_max_frame_size: 1 << 18)
        server.on(:frame) { |frame| pause.call if frame.getbyte(3) == 7 }
        server << input
      end
    RUBY
    "a block of http-2 that is sent" => <<~'RUBY',
      require "wireloom/drop_in/http_2"
      fields = [["x", Random.new(1).bytes(180_000)]]
      work = lambda do |pause|
        client = HTTP2::Client.new
        client.on(:frame) { |frame| pause.call if frame.getbyte(3) == 9 }
        client.new_stream.headers(fields)
      end
    RUBY
    "the text of an exception" => <<~'RUBY',
      require "wireloom"
      client = Wireloom::HTTP2::Client.new
      stream = client.request([%w[:method GET], %w[:scheme http], %w[:authority x], %w[:path /]])
      code = ("x" * 180_000).to_sym
      now = nil
      ArgumentError.prepend(Module.new { define_method(:initialize) { |*given| super(*given).tap { now.call } } })
      work = lambda do |pause|
        now = pause
        client.reset(stream, code)
      end
    RUBY
    "the text of an exception of http-2" => <<~'RUBY',
      require "wireloom/drop_in/http_2"
      code = Class.new { define_method(:inspect) { "x" * 180_000 } }.new
      now = nil
      HTTP2::Error::Error.prepend(Module.new { define_method(:initialize) { |*given| super(*given).tap { now.call } } })
      work = lambda do |pause|
        now = pause
        HTTP2::Framer.new.generate({ type: :rst_stream, stream: 1, error: code })
      end
    RUBY
    "the streams of http-2 whose windows change" => <<~'RUBY'
      require "wireloom/drop_in/http_2"
      client = HTTP2::Client.new
      client << "\0\0\0\x04\0\0\0\0\0".b
      streams = Array.new(40_000) { client.new_stream }
      window, now = 65_535, nil
      streams.first.on(:window) { now.call }
      work = lambda do |pause|
        now = pause
        client << [0, 6, 4, 0, 0, 4, window += 1].pack("nCCCNnN")
      end
    RUBY
  }.freeze

  # The last line that a script prints, which ends by itself.
  def run_script(what, script, before = CALLS.fetch(what))
    out, err, status = Open3.capture3(RbConfig.ruby, "-W0", "-I#{File.expand_path("../lib", __dir__)}", "-e", before + script)
    assert status.success?, "#{what}: #{status}\n#{err.lines.first(25).join}"
    out.lines.last.chomp
  end

  def test_listeners_that_never_return
    skip "no /proc" unless File.exist?("/proc/self/statm")
    CALLS.each_key do |what|
      growth = run_script(what, <<~RUBY)
        def resident = File.read("/proc/self/statm").split[1].to_i * 4096
        run = lambda do |count|
          count.times do
            called = false
            Fiber.new { work.call(->(*) { (called = true) && Fiber.yield }) }.resume
            abort "no listener was called" unless called
          end
          2.times { GC.start }
        end
        # As many as are counted: they are all there at once, until garbage is collected.
        run.call(45)
        before = resident
        run.call(45)
        puts resident - before
      RUBY
      # 45 times 160 kB are 7.2 MB.
      assert_operator Integer(growth), :<, 4 << 20, what
    end
  end

  def test_listeners_that_return_several_times
    CALLS.each_key do |what|
      assert_equal "again 5 times", run_script(what, <<~RUBY)
        require "continuation"
        continuation, again = nil, 0
        begin
          work.call(->(*) { continuation ||= callcc { |here| here } })
        rescue StandardError
          # The connection has ended.
        end
        if again < 5
          again += 1
          continuation.call(continuation)
        end
        # Memory that was freed twice would be allocated twice.
        GC.start
        200.times { |at| "x" * (at * 1000) }
        puts "again \#{again} times"
      RUBY
    end
  end

  # Each takes an object whose conversion returns several times.
  CONVERSIONS = {
    "headers" => 'Wireloom::WebSocket::Client.new("ws://x", headers: [["A" * 5000, "b" * 5000], ["c", Text.new("d")]])',
    "subprotocols" => 'Wireloom::WebSocket::Client.new("ws://x", subprotocols: ["a" * 3000, Text.new("b")])',
    "headers of an answer" => <<~'RUBY',
      client, server = Wireloom::WebSocket::Client.new("ws://x"), Wireloom::WebSocket::Server.new
      server.receive(client.take_output)
      server.accept(headers: [["A" * 5000, "b" * 5000], ["c", Text.new("d")]])
    RUBY
    "fields" => 'Wireloom::HTTP2::Client.new.request([[":method", "GET"], ["A" * 100, "x"], [Text.new(":path"), Text.new("/")]])',
    "a list of fields" => <<~'RUBY',
      list = Object.new
      list.define_singleton_method(:to_a) { HOOK.call && [["a", "b" * 20_000]] }
      HTTP2::Client.new.new_stream.headers(list)
    RUBY
    "settings" => 'generate(:settings, payload: [[:settings_enable_push, 1]] * 500 + [[:settings_max_concurrent_streams, Number.new(5)]])',
    "GOAWAY" => 'generate(:goaway, last_stream: 3, error: Number.new(2), payload: "x")',
    "ORIGIN" => 'generate(:origin, payload: ["a" * 1000, Text.new("b")])',
    "ALTSVC" => 'generate(:altsvc, max_age: 1, port: 2, proto: "a" * 100, host: Text.new("b"), origin: Text.new("c" * 300))'
  }.freeze

  def test_conversions_that_return_several_times
    CONVERSIONS.each do |what, call|
      assert_equal "again 3 times", run_script(what, <<~RUBY, "")
        require "continuation"
        require "wireloom/drop_in/http_2"
        $continuation = nil
        HOOK = -> { $continuation ||= callcc { |here| here } }
        Text = Struct.new(:text) { def to_str = HOOK.call && text }
        Number = Struct.new(:number) { def to_int = HOOK.call && number }
        def generate(type, **frame) = HTTP2::Framer.new.generate({ type: type, stream: 0, **frame })
        again = 0
        begin
          #{call}
        rescue StandardError
          # An object that was converted twice appears twice.
        end
        if again < 3
          again += 1
          200.times { |at| "x" * (at * 50) }
          $continuation.call($continuation)
        end
        GC.start
        200.times { |at| "x" * (at * 1000) }
        puts "again \#{again} times"
      RUBY
    end
  end
end
