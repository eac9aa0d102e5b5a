# frozen_string_literal: true

require_relative "test_helper"
require "open3"
require "rbconfig"
require "timeout"

# Misuse and accidents that must not end the process, nor leave an object unusable. Each script runs in a process of its own.
class SoundnessTest < Wireloom::TestCase
  LIB = File.expand_path("../lib", __dir__)
  SOURCES = File.expand_path("../ext/wireloom/src", __dir__)

  # A script that has not ended by then hangs. Under a sanitizer, beside other work, one takes more than a minute.
  HANG_S = 300

  # The output of a script, which has to end by itself.
  def run_script(script, env = {})
    out = status = nil
    Open3.popen2e(env, RbConfig.ruby, "-W0", "-I#{LIB}", "-e", script) do |stdin, stdouterr, thread|
      stdin.close
      begin
        Timeout.timeout(HANG_S) { out = stdouterr.read }
      rescue Timeout::Error
        Process.kill(:KILL, thread.pid)
        flunk "the script hangs"
      end
      status = thread.value
    end
    assert status.success?, "#{status}\n#{out.lines.first(25).join}"
    out
  end

  def test_the_first_calls_are_made_by_many_ractors
    3.times do
      assert_equal "8\n", run_script(<<~RUBY)
        require "wireloom/drop_in/http_2"
        require "wireloom/drop_in/websocket_driver"
        ractors = Array.new(8) do
          Ractor.new do
            Ractor.receive
            client = Wireloom::HTTP2::Client.new
            server = Wireloom::HTTP2::Server.new
            client.request([[":method", "GET"], [":scheme", "http"], [":authority", "x"], [":path", "/"]], end_stream: true)
            requests = server.receive(client.take_output).grep(Wireloom::HTTP2::Request)
            begin
              server.respond(99, [[":status", "200"]])
            rescue Wireloom::HTTP2::Error
              requests << :refused
            end
            HTTP2::Client.new.send_connection_preface
            requests.size == 2
          end
        end
        ractors.each { |ractor| ractor.send(:go) }
        puts ractors.count { |ractor| ractor.respond_to?(:value) ? ractor.value : ractor.take }
      RUBY
    end
  end

  def test_a_frame_buffer_holds_all_of_a_frame
    assert_equal "true\n", run_script(<<~RUBY)
      require "wireloom/drop_in/http_2"
      buffer = HTTP2::FrameBuffer.new
      300.times do |at|
        buffer << { type: :data, payload: "x" * 100, method: "method " + at.to_s * 30, error: ("error" + at.to_s).to_sym,
                    trailer: ["trailer " + at.to_s * 30] }
      end
      puts (0...300).all? { |at|
        # The rest of a frame does not hold the Hash that it was made of.
        buffer.retrieve(40).clear
        if at % 20 == 0
          GC.start
          GC.compact if GC.respond_to?(:compact)
          200.times { "filler" * 30; ["filler"] * 9 }
        end
        frame = buffer.retrieve(1000)
        frame[:method] == "method " + at.to_s * 30 && frame[:trailer] == ["trailer " + at.to_s * 30] &&
          frame[:error] == ("error" + at.to_s).to_sym
      }
    RUBY
  end

  def test_settings_whose_numbers_are_converted_by_the_application
    assert_equal "ok\n", run_script(<<~RUBY)
      require "wireloom/drop_in/http_2"
      class Number
        def initialize(number) = @number = number

        def to_int
          $pairs&.clear
          GC.start
          500.times { "garbage" * 20 }
          @number
        end
      end
      framer = HTTP2::Framer.new
      20.times do
        $pairs = Array.new(6) { [:settings_max_concurrent_streams, Number.new(2**40 % 1000 + 7)] }
        begin
          framer.generate({ type: :settings, stream: 0, payload: $pairs })
        rescue TypeError, HTTP2::Error::Error, IndexError
        end
        server = HTTP2::Server.new
        $pairs = [[:settings_initial_window_size, Number.new(70_000)], [:settings_max_frame_size, Number.new(20_000)]]
        begin
          server.settings($pairs)
        rescue TypeError, HTTP2::Error::Error
        end
      end
      puts "ok"
    RUBY
  end

  def test_no_memory_for_a_message
    skip "no limit of the address space here" unless RUBY_PLATFORM.include?("linux")
    needs_the_usual_allocator
    assert_equal "NoMemoryError\ntrue\n3\ntrue\n", run_script(<<~RUBY)
      require "wireloom/drop_in/websocket_driver"
      socket = Struct.new(:env) { def write(bytes) = true }.new({ "REQUEST_METHOD" => "GET", "HTTP_CONNECTION" => "Upgrade",
        "HTTP_UPGRADE" => "websocket", "HTTP_SEC_WEBSOCKET_KEY" => "x", "HTTP_SEC_WEBSOCKET_VERSION" => "13" })
      driver = WebSocket::Driver::Hybi.new(socket, max_length: 1 << 30)
      driver.start
      driver.on(:message) { |event| puts event.data.bytesize }
      header = [0x82, 127, 300 << 20].pack("CCQ>")
      chunk = "x" * (1 << 20)
      GC.start
      pages = File.read("/proc/self/statm").split[0].to_i
      Process.setrlimit(:AS, pages * 4096 + (150 << 20))
      driver.parse(header)
      begin
        300.times { driver.parse(chunk) }
      rescue NoMemoryError => e
        puts e.class
      end
      Process.setrlimit(:AS, Process::RLIM_INFINITY) rescue nil
      # Nothing is borrowed, and nothing of the broken message is delivered.
      driver.parse("\\x82\\x01x")
      puts driver.close
      puts driver.instance_variable_get(:@ready_state) + 1
      codec = driver.instance_variable_get(:@codec)
      codec.stop
      puts codec.parse("\\x82\\x01x", driver).nil?
    RUBY
  end

  # A message of 256 MiB, for an address space that has less. Each MiB is compressed without the one before (Zlib::FULL_FLUSH).
  BOMB = <<~'RUBY'
    require "zlib"
    bomb = (Zlib::Deflate.new(9, -15).deflate("\0" * (1 << 20), Zlib::FULL_FLUSH) * 256).delete_suffix("\0\0\xFF\xFF".b)
    frame = [0xC2, 0xFF, bomb.bytesize].pack("CCQ>") << "\0\0\0\0" << bomb
  RUBY

  NO_MEMORY = <<~'RUBY'
    def starved(room = 60 << 20)
      GC.start
      _, hard = Process.getrlimit(:AS)
      Process.setrlimit(:AS, File.read("/proc/self/statm").split[0].to_i * 4096 + room, hard)
      yield
    rescue NoMemoryError => e
      puts e.class
    ensure
      Process.setrlimit(:AS, hard, hard)
    end
  RUBY

  # A server, requests for it that share a table, and the values of "c" that it has seen.
  BLOCKS = <<~'RUBY'
    require "wireloom/drop_in/http_2"
    def blocks(huffman: :never, **settings)
      encoder = Wireloom::HPACK::Encoder.new(huffman: huffman)
      request = lambda do |stream, fields|
        block = encoder.encode([%w[:method GET], %w[:scheme http], %w[:authority x], %w[:path /]] + fields)
        [block.bytesize >> 8, block.bytesize & 0xff, 1, 5, stream].pack("nCCCN") << block
      end
      server, seen = HTTP2::Server.new(**settings), []
      server.on(:stream) { |stream| stream.on(:headers) { |head| seen << head.to_h["c"] } }
      server << "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".b
      [server, request, seen]
    end
  RUBY

  WEB_SOCKETS = <<~'RUBY'
    require "wireloom"
    def web_sockets(**options)
      client = Wireloom::WebSocket::Client.new("ws://x", **options)
      server = Wireloom::WebSocket::Server.new(**options)
      server.receive(client.take_output)
      server.accept
      client.receive(server.take_output)
      [client, server]
    end
  RUBY

  def test_no_memory_for_events
    skip "no limit of the address space here" unless RUBY_PLATFORM.include?("linux")
    needs_the_usual_allocator
    # The events have room, and the Strings have not.
    assert_equal "NoMemoryError\ntrue\n[\"behind\"]\n", run_script(NO_MEMORY + WEB_SOCKETS + <<~'RUBY')
      client, server = web_sockets(deflate: true)
      messages = ["first", "a".b * (31 << 20)]
      messages.each { |message| client.send(message) }
      chunk = client.take_output
      starved { server.receive(chunk) }
      p server.receive("") == messages
      client.text("behind")
      p server.receive(client.take_output)
    RUBY
    assert_equal "NoMemoryError\ntrue\n[Wireloom::HTTP2::Data, :internal_error]\n[]\nfalse\n",
                 run_script(NO_MEMORY + HTTP2_CONNECTIONS + <<~'RUBY')
      client, server = http2_connections(max_frame_size: 1 << 20)
      stream = client.request(REQUEST)
      server.receive(client.take_output)
      chunk = ([1 << 4, 0, 0, 0, stream].pack("CnCCN") << "x" * (1 << 20)) * 80
      starved { server.receive(chunk) }
      p server.closed? && server.take_output[-40..].include?("no memory")
      events = server.receive(chunk)
      p [events.first.class, events.last.code]
      p server.receive(chunk)
      p server.input?
    RUBY
  end

  def test_no_memory_for_output
    skip "no limit of the address space here" unless RUBY_PLATFORM.include?("linux")
    needs_the_usual_allocator
    assert_equal "NoMemoryError\ntrue\ntrue\n", run_script(NO_MEMORY + WEB_SOCKETS + <<~'RUBY')
      client, server = web_sockets(max_queued_length: 1 << 30)
      messages = Array.new(40) { |at| at.chr.b * (1 << 20) }
      messages.each { |message| client.send(message) }
      starved { client.take_output }
      p client.output?
      client.text("behind")
      p server.receive(client.take_output) == [*messages, "behind"]
    RUBY
    assert_equal "NoMemoryError\ntrue\ntrue\n", run_script(NO_MEMORY + HTTP2_CONNECTIONS + <<~'RUBY')
      client, server = http2_connections
      stream = client.request(REQUEST)
      content = Random.new(1).bytes(8 << 20)
      client.data(stream, content, end_stream: true)
      starved(5 << 20) { client.take_output }
      p client.output?
      p server.receive(client.take_output).grep(Wireloom::HTTP2::Data).sum("".b, &:data) == content
    RUBY
  end

  def test_no_memory_for_a_field_block
    skip "no limit of the address space here" unless RUBY_PLATFORM.include?("linux")
    needs_the_usual_allocator
    assert_equal "NoMemoryError\n[[\"a\", \"b\"]]\n", run_script(NO_MEMORY + <<~'RUBY')
      require "wireloom"
      encoder, decoder = Wireloom::HPACK::Encoder.new, Wireloom::HPACK::Decoder.new
      decoder.decode(encoder.encode([%w[c d]]))
      long = Random.new(1).bytes(24 << 20)
      starved(40 << 20) { encoder.encode([["long", long], %w[a b]]) }
      # The peer has not got the field that is in the table.
      p decoder.decode(encoder.encode([%w[a b]]))
    RUBY
  end

  # There is memory for the block, and not for the names in lower case.
  def test_no_memory_for_names_in_lower_case
    skip "no limit of the address space here" unless RUBY_PLATFORM.include?("linux")
    needs_the_usual_allocator
    assert_equal "NoMemoryError\n[[\"a\", \"b\"]]\n" + "NoMemoryError\n" * 2, run_script(NO_MEMORY + <<~'RUBY')
      require "wireloom"
      encoder, decoder = Wireloom::HPACK::Encoder.new, Wireloom::HPACK::Decoder.new
      long = "A" * (24 << 20)
      starved(40 << 20) { encoder.encode([[long, "b"]]) }
      p decoder.decode(encoder.encode([%w[a b]]))
      client = Wireloom::HTTP2::Client.new
      starved(10 << 20) { client.request([%w[:method GET], %w[:scheme http], %w[:authority x], %w[:path /], [long, "b"]]) }
      starved(10 << 20) { client.abort(:internal_error, long) }
    RUBY
  end

  # A frame whose block cannot be copied stays in the input.
  def test_no_memory_for_a_block_that_is_received
    skip "no limit of the address space here" unless RUBY_PLATFORM.include?("linux")
    needs_the_usual_allocator
    assert_equal "NoMemoryError\n[]\n[12582912]\n", run_script(NO_MEMORY + <<~'RUBY')
      require "wireloom/drop_in/http_2"
      long = "v" * (12 << 20)
      left = long.bytesize - 0x7f
      digits = []
      digits << (left & 0x7f | 0x80) && left >>= 7 while left >= 0x80
      # GET, http, /, "x" as authority, and the long value (RFC 7541 §6).
      block = [0x82, 0x86, 0x84, 0x01, 1, 0x78, 0x00, 1, 0x61, 0x7f, *digits, left].pack("C*") << long
      frame = [block.bytesize >> 8, block.bytesize & 0xff, 1, 5, 1].pack("nCCCN") << block
      server = HTTP2::Server.new(settings_max_frame_size: 0xffffff)
      lengths = []
      server.on(:stream) { |stream| stream.on(:headers) { |head| lengths << head.to_h["a"].bytesize } }
      server << "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".b
      # Two parts, so that there is room for the last byte.
      server << frame[0, 9 << 20]
      server << frame[9 << 20..-2]
      starved(8 << 20) { server << frame[-1] }
      p lengths
      server << ""
      p lengths
    RUBY
  end

  # The peer's table has the fields behind the one without memory: no later block is decoded with a table that lacks them.
  def test_no_memory_within_a_block_that_is_decoded
    skip "no limit of the address space here" unless RUBY_PLATFORM.include?("linux")
    needs_the_usual_allocator
    assert_equal "NoMemoryError\n\"a block before this one was not decoded\"\n" * 4, run_script(NO_MEMORY + <<~'RUBY')
      require "wireloom"
      long = "v" * (24 << 20)
      # For the String; for the String in Huffman code; for that String, and for the room to decode it in.
      [[:never, 10], [:always, 45], [:always, 10], [:shorter, 10]].each do |huffman, room|
        encoder, decoder = Wireloom::HPACK::Encoder.new(huffman: huffman), Wireloom::HPACK::Decoder.new
        block = encoder.encode([%w[a b], ["long", long], %w[c d]])
        starved(room << 20) { decoder.decode(block) }
        p decoder.decode(encoder.encode([%w[c d]]))
      rescue Wireloom::HPACK::Error => e
        p e.message
      end
    RUBY
  end

  # Ruby raises in the middle of a block that is decoded, or encoded: no buffer is lost.
  def test_no_memory_leaks_no_buffer
    skip "no limit of the address space here" unless RUBY_PLATFORM.include?("linux")
    needs_the_usual_allocator
    assert_equal "NoMemoryError\n" * 12 + "ok\n", run_script(NO_MEMORY + <<~'RUBY')
      require "wireloom"
      long = "V" * (40 << 20)
      block = Wireloom::HPACK::Encoder.new(huffman: :always).encode([["a", long]])
      # There is room to decode the value in, or to lower-case the name in, and not for the String of that.
      decode = -> { starved(90 << 20) { Wireloom::HPACK::Decoder.new.decode(block) } }
      encode = -> { starved(100 << 20) { Wireloom::HPACK::Encoder.new(huffman: :never).encode([[long, ""]]) } }
      grown = [decode, encode].map do |work|
        sizes = Array.new(6) do
          work.call
          File.read("/proc/self/statm").split[0].to_i * 4096 >> 20
        end
        sizes.last - sizes.first
      end
      puts grown.max < 120 ? "ok" : grown.inspect
    RUBY
  end

  # The input is refused, the frame stays in it or is taken whole, or the connection ends: at once or with the next block.
  def test_no_memory_within_a_block_that_is_received
    skip "no limit of the address space here" unless RUBY_PLATFORM.include?("linux")
    needs_the_usual_allocator
    # Long Strings have memory of their own, and leave none behind.
    out = run_script(NO_MEMORY + BLOCKS + <<~'RUBY', { "MALLOC_MMAP_THRESHOLD_" => "131072" })
      long = "v" * (14 << 20)
      [false, true].product(4.step(92, 8).to_a) do |watched, room|
        server, request, seen = blocks(huffman: :always, settings_max_frame_size: 0xffffff)
        server.on(:frame_received) { nil } if watched
        frame = request.(1, [%w[b 2], ["long", long], %w[c 3]])
        server << frame[0..-2]
        begin
          starved(room << 20) { server << frame[-1] }
          server << request.(3, [%w[c 3]])
        rescue HTTP2::Error::Error => e
          seen << e.message
        end
        puts seen.join(", ")
      end
    RUBY
    outcomes = ["3, 3", "there was no memory for the input before", "failed to allocate memory", "a block before this one was not decoded"]
    assert_empty out.lines.uniq - ["NoMemoryError", *outcomes].map { |line| "#{line}\n" }
    assert_includes out, "not decoded"
  end

  # The block of a frame is lost when its listener does not return. One that returns makes no difference.
  def test_a_listener_that_leaves_a_field_block_behind
    assert_equal "[\"3\", \"a block before this one was not decoded\"]\n" * 2, run_script(BLOCKS + <<~'RUBY')
      leave = -> { throw :away }
      stay = -> { Fiber.yield }
      [leave, stay].each do |work|
        server, request, seen = blocks
        server.on(:frame_received) { |frame| work.call if frame[:stream] == 3 }
        server << request.(1, [%w[b 2], %w[c 3]])
        Fiber.new { catch(:away) { server << request.(3, [%w[d 4], %w[c 5]]) } }.resume
        begin
          server << request.(5, [%w[c 5]])
        rescue HTTP2::Error::CompressionError => e
          seen << e.message
        end
        p seen
      end
    RUBY
  end

  # The block, the Strings of the table, the payload and the frame: memory ends at each of them.
  def test_no_memory_for_a_frame_with_a_field_block
    skip "no limit of the address space here" unless RUBY_PLATFORM.include?("linux")
    needs_the_usual_allocator
    out = run_script(NO_MEMORY + <<~'RUBY')
      require "wireloom/drop_in/http_2"
      long = Random.new(1).bytes(12 << 20)
      8.step(64, 8) do |room|
        client, server, decoder = HTTP2::Client.new, HTTP2::Server.new, Wireloom::HPACK::Decoder.new
        server.on(:frame) { |frame| client << frame }
        server.settings({ settings_max_frame_size: 0xffffff })
        client.new_stream
        blocks = []
        # Behind the frame's header, and a priority (RFC 9113 §6.2).
        client.on(:frame) do |frame|
          next unless frame.getbyte(3) == 1

          blocks << frame.byteslice((frame.getbyte(4) & 0x20 == 0 ? 9 : 14)..)
        end
        headers = ->(payload, **more) { client.send({ type: :headers, flags: [:end_headers], stream: 1, payload: payload, **more }) }
        headers.([%w[c d]])
        starved(room << 20) { headers.([["long", long], %w[a b]], weight: 3, dependency: 0, exclusive: false) }
        client.new_stream.headers([%w[a bb]])
        client.new_stream.headers([%w[a b]])
        p(blocks.map { |block| decoder.decode(block).sum { |_, value| value.bytesize } })
      end
    RUBY
    assert_equal ["NoMemoryError\n", "[1, 2, 1]\n", "[1, 12582913, 2, 1]\n"], out.lines.uniq
  end

  def test_no_memory_for_a_compressed_frame
    skip "no limit of the address space here" unless RUBY_PLATFORM.include?("linux")
    needs_the_usual_allocator
    assert_equal "NoMemoryError\nNoMemoryError\n[\"text\", \"text 2\", \"lost text\"]\n", run_script(NO_MEMORY + <<~'RUBY')
      require "wireloom/drop_in/websocket_driver"
      require "zlib"
      codec = Wireloom.const_get(:DriverCodec).new(WebSocket::Driver::MessageEvent, 1 << 30, false, false, false)
      codec.extend(4)
      codec.deflate(15, true, 15, true)
      lost = Random.new(1).bytes(45 << 20) << "lost text"
      longer = lost * 2
      frames = %w[text text\ 2].map { |text| codec.deflated_frame(1, text, false) }
      starved { codec.deflated_frame(2, lost, false) }
      starved { codec.deflated_frame(2, longer, false) }
      # It must not refer to the message that the peer has not got.
      frames << codec.deflated_frame(1, "lost text", false)
      inflate = Zlib::Inflate.new(-15)
      p frames.map { |frame| inflate.inflate(frame.byteslice(2..) << "\0\0\xFF\xFF".b) }
    RUBY
  end

  HTTP2_CONNECTIONS = <<~'RUBY'
    require "wireloom"
    REQUEST = [%w[:method POST], %w[:scheme http], %w[:authority x], %w[:path /]].freeze
    def http2_connections(**options)
      client = Wireloom::HTTP2::Client.new
      server = Wireloom::HTTP2::Server.new(initial_window_size: 1 << 30, connection_window: 1 << 30, **options)
      2.times do
        server.receive(client.take_output)
        client.receive(server.take_output)
      end
      [client, server]
    end
  RUBY

  def test_no_memory_to_inflate_into
    skip "no limit of the address space here" unless RUBY_PLATFORM.include?("linux")
    needs_the_usual_allocator
    assert_equal "NoMemoryError\nWireloom::DeflateError\n", run_script(BOMB + NO_MEMORY + <<~'RUBY')
      require "wireloom"
      inflater = Wireloom.const_get(:Inflater).new(15, true)
      starved { inflater.inflate(bomb, nil) }
      begin
        inflater.inflate("\0".b, nil)
      rescue NoMemoryError, Wireloom::DeflateError
        puts Wireloom::DeflateError
      end
    RUBY
    assert_equal "\"before\"\n1009\n:closing\n", run_script(BOMB + NO_MEMORY + WEB_SOCKETS + <<~'RUBY')
      client, server = web_sockets(deflate: true, max_message_length: 1 << 30)
      client.text("before")
      chunk = client.take_output << frame
      starved { server.receive(chunk).each { |event| p event.is_a?(String) ? event : event.code } }
      p server.state
    RUBY
    assert_equal "NoMemoryError\nnil\n", run_script(BOMB + NO_MEMORY + <<~'RUBY')
      require "wireloom/drop_in/websocket_driver"
      type = Wireloom.const_get(:DriverCodec)
      codec = type.new(WebSocket::Driver::MessageEvent, 1 << 30, true, false, false)
      codec.extend(4)
      codec.deflate(15, true, 15, true)
      driver = Class.new { include WebSocket::Driver::EventEmitter }.new
      starved { codec.parse(frame, driver) }
      p codec.parse("\x82\x80\0\0\0\0".b, driver)
    RUBY
  end

  def test_no_memory_for_a_copy_of_the_input
    skip "no limit of the address space here" unless RUBY_PLATFORM.include?("linux")
    needs_the_usual_allocator
    assert_equal "NoMemoryError\n[1011]\n:closed\n", run_script(NO_MEMORY + WEB_SOCKETS + <<~'RUBY')
      _, server = web_sockets
      chunk = "x" * (100 << 20)
      starved { server.receive(chunk) }
      # It says that input was lost.
      p server.receive("\x81\x80\0\0\0\0".b).map(&:code)
      p server.state
    RUBY
    # Bytes after an exception are kept for the next call.
    assert_equal "NoMemoryError\nnil\n", run_script(NO_MEMORY + <<~'RUBY')
      require "wireloom/drop_in/websocket_driver"
      codec = Wireloom.const_get(:DriverCodec).new(WebSocket::Driver::MessageEvent, 1 << 30, false, false, false)
      driver = Class.new { include WebSocket::Driver::EventEmitter }.new
      driver.on(:message) { raise "now and then" }
      chunk = "\x81\x01a".b << "x" * (100 << 20)
      starved { codec.parse(chunk, driver) }
      # The codec has stopped.
      p codec.parse("\x81\x01b".b, driver)
    RUBY
  end

  def test_no_memory_for_what_is_made_of_a_long_string
    skip "no limit of the address space here" unless RUBY_PLATFORM.include?("linux")
    needs_the_usual_allocator
    assert_equal "NoMemoryError\n" * 5 + "there was no memory for the input before\n", run_script(NO_MEMORY + <<~'RUBY')
      require "wireloom/drop_in/http_2"
      long = "x" * (100 << 20)
      # A name and a value in Huffman code (RFC 7541 §5.2).
      left = long.bytesize - 0x7f
      digits = []
      digits << (left & 0x7f | 0x80) && left >>= 7 while left >= 0x80
      block = [0x00, 0x01, 0x61, 0xff, *digits, left].pack("C*") << long
      decoder = Wireloom::HPACK::Decoder.new
      client = Wireloom::HTTP2::Client.new
      stream = client.request([%w[:method POST], %w[:scheme http], %w[:authority x], %w[:path /]])
      server = HTTP2::Server.new
      [-> { Wireloom::HPACK.huffman_encode(long) }, -> { Wireloom::HPACK.huffman_decode(long) }, -> { decoder.decode(block) },
       -> { client.data(stream, long) }, -> { server << long }].each { |call| starved(&call) }
      client.data(stream, "x")
      # Input was lost: what follows is no frame.
      begin
        server << "PRI"
      rescue HTTP2::Error::InternalError => e
        puts e.message
      end
    RUBY
  end

  # Calls that wait for another thread, which inflates without the GVL, are interrupted, and the object stays usable.
  def test_interrupts_of_calls_that_wait_for_another_thread
    assert_equal "ok\n", run_script(<<~'RUBY')
      require "wireloom"
      deflater = Wireloom.const_get(:Deflater).new(15, true)
      large = Random.new(1).bytes(2 << 20)
      Thread.report_on_exception = false
      running = Queue.new
      worker = Thread.new { 5.times { deflater.deflate(large) } }
      waiters = Array.new(20) do |at|
        Thread.new do
          running << at
          loop { deflater.deflate("x" * 3000) }
        end
      end
      waiters.size.times { running.pop }
      sleep 0.02
      waiters.each_with_index { |waiter, at| at.even? ? waiter.raise("now") : waiter.kill }
      waiters.each { |waiter| waiter.join rescue nil }
      worker.join
      puts "ok" if deflater.deflate("x").bytesize > 0
    RUBY
  end

  # A call that waits for another thread uses what its String holds afterwards.
  def test_a_string_that_changes_while_a_call_waits
    assert_equal "ok\nok\n", run_script(<<~'RUBY')
      require "wireloom"
      large = Random.new(1).bytes(200 << 10)
      # Calls the block, which waits for `work`, with a String of `length` bytes whose memory another thread frees meanwhile.
      waiting = lambda do |work, length, &call|
        buffer = "x" * length
        done = false
        calls = Thread.new do
          stop = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 10
          # The others begin meanwhile.
          results = [sleep(0.01) && call.(buffer)]
          while results.size < 12 && Process.clock_gettime(Process::CLOCK_MONOTONIC) < stop
            results << (sleep(0.001) && call.(buffer))
          end
          results
        ensure
          done = true
        end
        busy = Thread.new { work.() until done }
        until done
          buffer.clear
          # Another String takes its place.
          Array.new(20) { "z" * length }
          buffer << "x" * length
          # `Thread.pass` would keep the others waiting for a time slice.
          sleep(0.0001)
        end
        busy.join
        calls.value
      end
      deflater = Wireloom.const_get(:Deflater).new(15, false)
      inflater = Wireloom.const_get(:Inflater).new(15, false)
      blocks = waiting.(-> { deflater.deflate(large) }, 3000) { |buffer| deflater.deflate(buffer) }
      wrong = blocks.map { |block| inflater.inflate(block, nil) } - ["", "x" * 3000]
      puts wrong.empty? ? "ok" : wrong.first.inspect[..300]
      client = Wireloom::WebSocket::Client.new("ws://x", deflate: true, max_queued_length: 1 << 30)
      server = Wireloom::WebSocket::Server.new(deflate: true, max_message_length: 1 << 30)
      server.receive(client.take_output)
      server.accept
      client.receive(server.take_output)
      wire = waiting.(-> { client.binary(large) }, 100) do |buffer|
        client.ping(buffer)
        client.take_output
      end
      pings = server.receive(wire.join).grep(Wireloom::WebSocket::Ping).map(&:data)
      wrong = pings - ["", "x" * 100]
      puts pings.any? && wrong.empty? ? "ok" : wrong.first.inspect
    RUBY
  end

  # Against the rules of guides/concurrency.md, which promise that no memory is damaged.
  def test_several_threads_that_parse_parts_of_a_message
    assert_equal "ok\n", run_script(<<~'RUBY')
      require "wireloom/drop_in/websocket_driver"
      class Refusing
        include WebSocket::Driver::EventEmitter
        attr_accessor :refused
        def fail(*) = @refused = true
      end
      part = ->(first, length) { [first, 0xFF, length].pack("CCQ>") << "mask" << "x" * length }
      # Long ones are unmasked without the GVL, which a thread with short ones has when it is wanted back.
      parts = [[part.call(0, 2 << 20), 8], [part.call(0, 66_000), 300]] * 2
      first = part.call(2, 70_000)
      # The address sanitizer's `realloc` always moves, to pages that are new to the process.
      (ENV.key?("LD_PRELOAD") ? 3 : 30).times do
        codec = Wireloom.const_get(:DriverCodec).new(WebSocket::Driver::MessageEvent, 1 << 40, false, false, false)
        codec.parse(first, Refusing.new)
        # A message is refused when two threads have parts of it at once; then the next one begins.
        parse = lambda do |bytes|
          driver = Refusing.new
          codec.parse(bytes, driver)
          codec.parse(first, driver) if driver.refused
        end
        parts.map { |bytes, count| Thread.new { count.times { parse.call(bytes) } } }.each(&:join)
      end
      puts "ok"
    RUBY
  end

  # One thread continues where another one, which inflates what was kept of a chunk before, has got to.
  def test_a_thread_that_parses_while_another_one_inflates
    assert_equal "ok\n", run_script(<<~'RUBY')
      require "wireloom/drop_in/websocket_driver"
      random = Random.new(1)
      codec = lambda do
        Wireloom.const_get(:DriverCodec).new(WebSocket::Driver::MessageEvent, 1 << 30, false, false, false).tap do |codec|
          codec.extend(4)
          codec.deflate(15, true, 15, true)
        end
      end
      # From 256 KiB on, messages are unmasked without the GVL if they are not compressed.
      wrong = [*[8 << 10] * 50, *[300 << 10] * 10].map do |len|
        peer, receiver = codec.(), codec.()
        # Each refers to the one before it.
        sent = [random.bytes(len)]
        sent << sent.last[-4096..] + random.bytes(len - 4096) while sent.size < 4
        frames = sent.map { |data| peer.deflated_frame(2, data, false) }
        messages, begun, early = [], false, false
        driver = Class.new { include WebSocket::Driver::EventEmitter }.new
        driver.on(:message) { |event| messages << event.data }
        %i[fail receive_close receive_ping receive_pong].each { |name| driver.define_singleton_method(name) { |*| messages << name.to_s } }
        receiver.parse(frames[0][0, 3], driver)
        middle = frames[2].bytesize / 2
        # Both threads want the GVL while this one inflates: it is the last to have it again.
        busy = lambda do
          till = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 0.003
          nil until Process.clock_gettime(Process::CLOCK_MONOTONIC) > till
        end
        threads = [busy, -> { (early = !begun) || receiver.parse(frames[2][middle..] + frames[3], driver) }].map do |work|
          go = Queue.new
          thread = Thread.new { go.pop && work.() }
          Thread.pass until thread.stop?
          [go, thread]
        end
        threads.each { |go, _| go << true }
        begun = true
        receiver.parse(frames[0][3..] + frames[1] + frames[2][0, middle], driver)
        threads.each { |_, thread| thread.join }
        messages.map { |data| sent.index(data) || data } unless early || messages.sort == sent.sort
      end
      puts wrong.compact.empty? ? "ok" : "#{wrong.compact.size} of #{wrong.size}, #{wrong.compact.first}"
    RUBY
  end

  # A message ends while another thread, which unmasked the part before, waits for the GVL. Nothing of it may be delivered without that
  # part, nor that part with the next message, which begins before the part is put back, or after.
  def test_a_message_that_ends_before_a_part_of_it_is_put_back
    assert_equal "ok\n", run_script(<<~'RUBY')
      require "wireloom/drop_in/websocket_driver"
      part = ->(first, bytes) { [first, 0x7F, bytes.bytesize].pack("CCQ>") << bytes }
      now = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) }
      work = ->(seconds) { till = now.call + seconds; nil while now.call < till }
      long = "\xFF".b * 300_000
      finish, text = "\x80\x03end".b, "\x01\x05text,".b
      delivered = [[finish, text], [finish + text, ""]].cycle.first(10).map do |meanwhile, after|
        codec = Wireloom.const_get(:DriverCodec).new(WebSocket::Driver::MessageEvent, 1 << 30, false, false, false)
        messages = []
        driver = Class.new { include(WebSocket::Driver::EventEmitter) && def fail(*) = nil }.new
        driver.on(:message) { |event| messages << [event.data.encoding, event.data.b] }
        # Both want the GVL when the long part is parsed: the first keeps it until that is done, then the second has it.
        threads = [Thread.new { work.call(0.02) }, Thread.new { codec.parse(meanwhile, driver) }]
        work.call(0.005)
        codec.parse(part.call(2, long), driver)
        threads.each(&:join)
        codec.parse(after + finish, driver)
        messages
      end
      wrong = delivered.flatten(1) - [[Encoding::BINARY, long + "end"], [Encoding::UTF_8, "text,end".b]]
      puts wrong.empty? ? "ok" : wrong.map { |encoding, data| [encoding, data.bytesize, data[-8..]].inspect }
    RUBY
  end

  def test_a_fork_while_another_thread_works
    skip "no fork" unless Process.respond_to?(:fork)
    assert_equal "a thread was working on this object when the process forked; make a new one\nok\n", run_script(<<~'RUBY')
      require "wireloom"
      $stdout.sync = true
      deflater = Wireloom.const_get(:Deflater).new(15, true)
      large = Random.new(1).bytes(30 << 20)
      worker = Thread.new { deflater.deflate(large) }
      Thread.pass until worker.status == "sleep" || worker.stop?
      sleep 0.02
      fork do
        deflater.deflate("x")
      rescue Wireloom::Error => e
        puts e.message
        # The state that the thread left half done is not freed.
        deflater = nil
        GC.start
        exit!(0)
      end
      Process.wait
      worker.join
      deflater.deflate("x")
      puts "ok"
    RUBY
  end

  # A thread that waits handles what was raised in it before it changes anything: with that pending it would keep the GVL.
  def test_an_exception_for_a_thread_that_waits_for_another_one
    assert_equal "[]\n", run_script(WEB_SOCKETS + <<~'RUBY')
      client, server = web_sockets(deflate: true, max_queued_length: 1 << 30, max_message_length: 1 << 30)
      large = Random.new(1).bytes(8 << 20)
      outcomes = Array.new(5) do |at|
        worker = Thread.new { client.binary(large) }
        Thread.pass until worker.stop?
        waiter = Thread.new do
          client.ping(at.to_s)
          :sent
        rescue RuntimeError
          :raised
        end
        Thread.pass until waiter.stop?
        waiter.raise("now")
        worker.join
        waiter.value
      rescue RuntimeError
        # It came before the `begin`, or behind the last line.
        :unknown
      end
      pings = server.receive(client.take_output).grep(Wireloom::WebSocket::Ping).map { |ping| ping.data.to_i }
      p outcomes.each_with_index.select { |outcome, at| outcome == :raised && pings.include?(at) }
    RUBY
  end

  # Threads that wait at a fork do not exist in the child, which must not wait for their turns: each call would wait 20 times.
  def test_a_fork_while_other_threads_wait_for_their_turn
    skip "no fork" unless Process.respond_to?(:fork) && File.exist?("/proc/thread-self/status")
    assert_equal "ok\n", run_script(<<~'RUBY')
      require "wireloom"
      waits = -> { File.read("/proc/thread-self/status")[/^voluntary_ctxt_switches:\s+(\d+)/, 1].to_i }
      large = Random.new(1).bytes(1 << 20)
      now = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) }
      found = 40.times.map do |at|
        deflater = Wireloom.const_get(:Deflater).new(15, true)
        threads = Array.new(4) { Thread.new { deflater.deflate(large) } }
        Thread.pass until threads.all? { |thread| thread.status == "sleep" || thread.stop? }
        # This thread keeps the GVL until then: some are through, and cannot go on.
        till = now.call + 0.002 * at
        nil while now.call < till
        child = fork do
          before = waits.call
          200.times { deflater.deflate("x" * 5000) }
          exit!(waits.call - before < 2000 ? 0 : 1)
        rescue Wireloom::Error
          exit!(0)
        end
        Process.wait(child)
        threads.each(&:join)
        $?.exitstatus
      end
      puts found.all?(0) ? "ok" : found.inspect
    RUBY
  end

  def test_connections_are_not_copied
    assert_equal "NoMethodError\nNoMethodError\nTypeError\n" * 3, run_script(<<~'RUBY')
      require "wireloom"
      [Wireloom::WebSocket::Client.new("ws://x"), Wireloom::WebSocket::Server.new, Wireloom::HTTP2::Client.new].each do |connection|
        [-> { connection.dup }, -> { connection.clone }, -> { Ractor.new { Ractor.receive }.send(connection) }].each do |copy|
          copy.()
          puts "copied"
        rescue NoMethodError, TypeError => e
          puts e.class
        end
      end
    RUBY
  end

  def test_copies_of_the_parts_of_the_drop_in_are_like_the_originals
    assert_equal "[100, 200]\n\"abc\"\n\"abc\"\n", run_script(<<~'RUBY')
      require "wireloom/drop_in/http_2"
      framer = HTTP2::Framer.new(100, 200).dup
      p [framer.local_max_frame_size, framer.remote_max_frame_size]
      buffer = HTTP2::FrameBuffer.new
      buffer << { type: :data, payload: "abc" }
      copy = buffer.dup
      p buffer.retrieve(100)[:payload], copy.retrieve(100)[:payload]
    RUBY
  end

  def test_frozen_objects
    assert_equal "FrozenError\n" * 12, run_script(<<~'RUBY')
      require "wireloom/drop_in/http_2"
      client, h2 = Wireloom::WebSocket::Client.new("ws://x").freeze, Wireloom::HTTP2::Client.new.freeze
      connection = HTTP2::Client.new
      stream = connection.new_stream
      [connection, stream].each(&:freeze)
      context, framer, buffer = Wireloom::HPACK::Context.new({}).freeze, HTTP2::Framer.new.freeze, HTTP2::FrameBuffer.new.freeze
      [-> { client.receive("") }, -> { client.take_output }, -> { h2.receive("") }, -> { h2.ping("12345678") },
       -> { connection << "" }, -> { connection.ping("12345678") }, -> { connection.new_stream }, -> { stream.close },
       -> { context.compress([["a", "b"]]) }, -> { context.max_limit = 1 }, -> { framer.local_max_frame_size = 1 }, -> { buffer.clear }
      ].each do |change|
        change.()
        puts "changed"
      rescue FrozenError => e
        puts e.class
      end
    RUBY
  end

  def test_internal_classes_are_private
    assert_equal "NameError\n" * 3 + "NoMethodError\n", run_script(<<~'RUBY')
      require "wireloom"
      [-> { Wireloom::DriverCodec }, -> { Wireloom::Deflater }, -> { Wireloom::Inflater }, -> { Wireloom::InternalError.provoke }
      ].each do |use|
        use.()
        puts "public"
      rescue NameError => e
        puts e.class
      end
    RUBY
  end

  def test_no_memory_for_a_header
    skip "no limit of the address space here" unless RUBY_PLATFORM.include?("linux")
    needs_the_usual_allocator
    assert_equal "NoMemoryError\na block before this one was not decoded\n", run_script(<<~'RUBY')
      require "wireloom"
      decoder = Wireloom::HPACK::Decoder.new
      length = 200 << 20
      left = length - 0x7f
      digits = []
      digits << (left & 0x7f | 0x80) && left >>= 7 while left >= 0x80
      block = [0x00, 0x01, 0x61, 0x7f, *digits, left].pack("C*") << "x" * length
      GC.start
      pages = File.read("/proc/self/statm").split[0].to_i
      _, hard = Process.getrlimit(:AS)
      Process.setrlimit(:AS, pages * 4096 + (50 << 20), hard)
      begin
        decoder.decode(block)
      rescue NoMemoryError => e
        puts e.class
      end
      Process.setrlimit(:AS, hard, hard)
      # The table is not borrowed any more.
      begin
        decoder.decode("\x82".b)
      rescue Wireloom::HPACK::Error => e
        puts e.message
      end
    RUBY
  end

  def test_exceptions_of_the_application_call_back
    assert_equal "ok\n", run_script(<<~'RUBY')
      require "wireloom/drop_in/http_2"
      require "wireloom/drop_in/websocket_driver"
      $connections = []
      reenter = Module.new do
        def initialize(*)
          super
          return if $reentered

          $reentered = true
          $connections.each do |connection|
            connection.respond_to?(:input?) && connection.input?
            connection.respond_to?(:receive) && connection.receive("".b)
            connection.respond_to?(:output?) && connection.output?
            connection.respond_to?(:take_output) && connection.take_output
          rescue StandardError
            nil
          end
          $reentered = false
        end
      end
      [HTTP2::Error::Error, Wireloom::HTTP2::Error, Wireloom::WebSocket::Error, Wireloom::InternalError,
       *Wireloom::HTTP2.constants.map { |name| Wireloom::HTTP2.const_get(name) }.grep(Class).select { |c| c < Struct },
       *Wireloom::WebSocket.constants.map { |name| Wireloom::WebSocket.const_get(name) }.grep(Class).select { |c| c < Struct }
      ].each { |type| type.prepend(reenter) }
      frames = ["\0\0\x01\x06\0\0\0\0\0x", "\0\0\x05\x04\0\0\0\0\0xxxxx", "\0\0\0\x01\x08\0\0\0\x01", "\xFF" * 30]
      frames.each do |frame|
        server = HTTP2::Server.new
        $connections = [server]
        begin
          server << "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".b + frame.b
        rescue HTTP2::Error::Error
        end
        server = Wireloom::HTTP2::Server.new
        $connections = [server]
        server.receive("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".b + frame.b)
        server.respond(5, []) rescue nil
      end
      client = Wireloom::WebSocket::Client.new("ws://x")
      server = Wireloom::WebSocket::Server.new
      $connections = [client, server]
      server.receive(client.take_output)
      server.accept
      client.receive(server.take_output)
      client.text("\xFF") rescue nil
      client.text("a")
      client.ping("b")
      client.close
      server.receive(client.take_output)
      client.receive(server.take_output)
      server.accept rescue nil
      puts "ok"
    RUBY
  end

  # The constructor of an exception may throw, and another thread may kill this one in it.
  def test_threads_that_end_while_an_exception_is_made
    assert_equal "nil\nthrown\nraised\nnil\nthrown\nraised\n", run_script(<<~'RUBY')
      require "wireloom/drop_in/http_2"
      ending = Module.new do
        def initialize(*)
          $ending.call
          super
        end
      end
      [HTTP2::Error::Error, Wireloom::WebSocket::Error].each { |type| type.prepend(ending) }
      calls = [->(*) { Wireloom::WebSocket::Client.new("ws://x").text("a") }, ->(*) { HTTP2::Server.new << "no preface" * 9 }]
      calls.each do |call|
        $ending = -> { Thread.exit }
        p Thread.new(&call).value
        $ending = -> { throw :out, "thrown" }
        puts catch(:out, &call)
        $ending = -> { raise "raised" }
        puts((call.call rescue $!.message))
      end
    RUBY
  end

  # Reading settings calls methods of the application: a thread may end in them.
  def test_threads_that_end_while_settings_are_read
    assert_equal "nil\nthrown\n" * 3, run_script(<<~'RUBY')
      require "wireloom/drop_in/http_2"
      server = HTTP2::Server.new(settings_enable_connect_protocol: 1)
      client = HTTP2::Client.new
      client.on(:frame) { |bytes| server << bytes }
      server.on(:frame) { |bytes| client << bytes }
      client.send_connection_preface
      server.local_settings.define_singleton_method(:[]) { |_| $ending.call }
      number = Object.new
      number.define_singleton_method(:to_int) { $ending.call }
      calls = [
        ->(*) { client.new_stream.headers([%w[:method CONNECT], %w[:protocol x], %w[:scheme http], %w[:authority x], %w[:path /]]) },
        ->(*) { HTTP2::Framer.new.generate({ type: :rst_stream, stream: 1, error: number }) },
        ->(*) { HTTP2::Framer.new.generate({ type: :data, stream: 1, payload: "", flags: number }) }
      ]
      calls.each do |call|
        $ending = -> { Thread.exit }
        p Thread.new(&call).value
        $ending = -> { throw :out, "thrown" }
        puts catch(:out, &call)
      end
    RUBY
  end

  def test_overridden_methods_of_string_io
    assert_equal "ok\n", run_script(<<~'RUBY')
      require "wireloom/drop_in/protocol_websocket"
      require "stringio"
      io = StringIO.new("\x81\x01a".b * 10)
      [nil, 5, :symbol, [], Object.new, "\x81\x05shorter than pos"].each do |answer|
        StringIO.class_eval { define_method(:string) { answer } }
        begin
          Protocol::WebSocket::Framer.new(io).read_frame
        rescue StandardError
        end
      end
      [nil, -1, 2**70, "1", 2**62 - 1].each do |answer|
        StringIO.class_eval { define_method(:string) { "\x81\x01a".b } }
        StringIO.class_eval { define_method(:pos) { answer } }
        begin
          Protocol::WebSocket::Framer.new(io).read_frame
        rescue StandardError
        end
      end
      puts "ok"
    RUBY
  end

  def test_a_foreign_struct_for_events
    assert_equal "TypeError\n" * 5 + "ok\n", run_script(<<~RUBY)
      require "wireloom"
      [Struct.new(:a, :b, :c, :d, :e, :f, :g, :h, :i), Struct, Class.new, String, Class.new(Struct)].each do |type|
        Wireloom.const_get(:DriverCodec).new(type, 100, false, false, false)
      rescue TypeError => e
        puts e.class
      end
      begin
        Wireloom.const_get(:DriverCodec).allocate
      rescue TypeError
        puts "ok"
      end
    RUBY
  end

  def test_masking_keys_after_a_fork
    skip "no fork" unless Process.respond_to?(:fork)
    assert_equal "0\n", run_script(<<~'RUBY')
      require "wireloom/drop_in/websocket_driver"
      codec = Wireloom.const_get(:DriverCodec).new(WebSocket::Driver::MessageEvent, 100, false, false, false)
      client = Wireloom::WebSocket::Client.new("ws://x")
      server = Wireloom::WebSocket::Server.new
      server.receive(client.take_output)
      server.accept
      client.receive(server.take_output)
      keys = lambda do
        Array.new(8) { codec.frame(1, "", nil, true)[2, 4].unpack1("H*") } +
          Array.new(8) { client.text(""); client.take_output[2, 4].unpack1("H*") } +
          Array.new(8) { client.receive("\x89\x00".b); client.take_output[2, 4].unpack1("H*") }
      end
      keys.call
      reader, writer = IO.pipe
      2.times { fork { writer.puts keys.call } }
      Process.waitall
      writer.close
      all = reader.read.split + keys.call
      puts 72 - all.uniq.size
    RUBY
  end

  # A peer's RST_STREAM takes the stream out of its connection before the listeners are called. They are one Proc without a
  # reference to the stream; the finalizers show that the stream is collected after the call, and not before its end.
  def test_a_stream_lives_until_its_last_listener_has_returned
    assert_equal "60 closed, 0 early, collected later\n", run_script(<<~'RUBY')
      require "wireloom/drop_in/http_2"
      $gone, $closed, $early = [], 0, 0
      GONE = Array.new(20) { |at| proc { $gone << at } }
      LISTENER = proc do
        GC.start
        200.times { HTTP2::Stream.allocate; "garbage" * 9 }
        GC.start
        $early += 1 if $gone.include?($current)
        $closed += 1
        nil
      end
      wire = "".b
      client = HTTP2::Client.new
      client.on(:frame) { |bytes| wire << bytes }
      client.send_connection_preface
      server = HTTP2::Server.new
      server.on(:stream) do |stream|
        ObjectSpace.define_finalizer(stream, GONE[$current])
        3.times { stream.on(:close, &LISTENER) }
      end
      20.times do |at|
        $current = at
        stream = client.new_stream
        stream.headers([[":method", "GET"], [":scheme", "http"], [":authority", "x"], [":path", "/"]], end_stream: false)
        server << wire.slice!(0..)
        server << [0, 4, 3, 0, stream.id, 8].pack("CnCCNN")
      end
      GC.start
      # Old values on the stack may keep some.
      puts "#{$closed} closed, #{$early} early, #{$gone.size > 10 ? "collected later" : "#{$gone.size} collected"}"
    RUBY
  end

  def test_a_string_that_overrides_force_encoding
    assert_equal "[nil, true]\n", run_script(<<~'RUBY')
      require "wireloom/drop_in/protocol_websocket"
      class Stubborn < String
        def force_encoding(*)
          replace("\xFF\xFF".b)
          self
        end
      end
      text = Wireloom::ProtocolWebSocket.text(Stubborn.new("abc"))
      p [Wireloom::ProtocolWebSocket.text(Stubborn.new("\xFF")), text == "abc" && text.valid_encoding?]
    RUBY
  end

  def test_memory_outside_of_the_heap_is_accounted
    assert_equal "true\n", run_script(<<~RUBY)
      require "wireloom"
      client = Wireloom::WebSocket::Client.new("ws://x", max_queued_length: 1 << 30)
      server = Wireloom::WebSocket::Server.new
      server.receive(client.take_output)
      server.accept
      client.receive(server.take_output)
      message = "x" * (4 << 20)
      GC.start
      GC.disable
      before = GC.stat(:malloc_increase_bytes)
      client.binary(message)
      puts GC.stat(:malloc_increase_bytes) - before > 3 << 20
    RUBY
  end

  def test_a_header_that_is_too_long
    require "wireloom"
    assert_raises(ArgumentError) { Wireloom::HPACK::Encoder.new.encode([["a", "b" * ((64 << 20) + 1)]]) }
  end

  def test_objects_can_be_moved
    skip "no compaction" unless GC.respond_to?(:verify_compaction_references)
    assert_equal "true\n", run_script(<<~'RUBY')
      require "wireloom/drop_in/http_2"
      require "wireloom/drop_in/websocket_driver"
      require "wireloom/drop_in/protocol_websocket"
      headers = [[":method", "GET"], [":scheme", "http"], [":authority", "x"], [":path", "/" + "p" * 40], ["x-" + "n" * 40, "v" * 40]]
      client, server = HTTP2::Client.new, HTTP2::Server.new
      client.on(:frame) { |bytes| server << bytes }
      server.on(:frame) { |bytes| client << bytes }
      heads = []
      server.on(:stream) { |stream| stream.on(:headers) { |head| heads << head } }
      stream = client.new_stream
      stream.headers(headers)
      stream.data("x" * 100_000, end_stream: false)
      encoder, decoder = Wireloom::HPACK::Encoder.new, Wireloom::HPACK::Decoder.new
      decoder.decode(encoder.encode(headers))
      driver = WebSocket::Driver::Hybi.new(Struct.new(:url) { def write(bytes) = true }.new("ws://x"), masking: true)
      codec = driver.instance_variable_get(:@codec)
      codec.parse("\x01\x03abc".b, driver)
      utf8 = Wireloom::ProtocolWebSocket::Utf8.new
      GC.verify_compaction_references(toward: :empty, **(RUBY_VERSION < "3.2" ? { double_heap: true } : { expand_heap: true }))
      GC.compact
      stream.data("y", end_stream: true)
      messages = []
      driver.on(:message) { |event| messages << event.data }
      codec.parse("\x80\x01d".b, driver)
      GC.start
      client.new_stream.headers(headers)
      puts messages == ["abcd"] && heads.size == 2 && heads.all?(headers) && decoder.decode(encoder.encode(headers)) == headers
    RUBY
  end

  # The tests below read the sources: rules that the types cannot keep alone.

  def sources
    Dir[File.join(SOURCES, "**/*.rs")].to_h { |path| [path.delete_prefix("#{SOURCES}/"), File.read(path)] }
  end

  def assert_nowhere(pattern, except: [])
    found = sources.except(*except).flat_map do |name, text|
      text.lines.grep(pattern).grep_v(%r{\A\s*//}).map { |line| "#{name}: #{line.strip}" }
    end
    assert_empty found
  end

  def test_exported_methods_go_through_the_guard
    # Those of magnus raise `fatal` for a panic.
    assert_nowhere(/magnus::(method|function)!|use magnus::.*\b(method|function)\b/, except: ["guard.rs"])
    assert_nowhere(/\A    (Error|DataTypeFunctions).*\b(method|function)\b/)
    # A panic below magnus's ends the process.
    assert_nowhere(/rb_sys::(protect\b|\{[^}]*\bprotect\b)/, except: ["guard.rs"])
    defined = sources.sum { |_, text| text.scan(/define_(?:private_|singleton_)?method\(/).size }
    guarded = sources.sum do |_, text|
      text.scan(/define_(?:private_|singleton_)?method\(\s*(?:"[^"]+"|name),\s*(?:method!|function!|\w+ as RawMethod)/).size
    end
    assert_equal defined, guarded
    raw = sources.flat_map { |_, text| text.scan(/(\w+) as RawMethod/).flatten }
    raw.each do |name|
      body = sources.values.filter_map { |text| text[/unsafe extern "C" fn #{name}\(.*?\n}/m] }.first
      assert_match(/unsafe \{\s*enter\(/, body)
    end
  end

  # One function writes the flags of objects, which C code may not write. Its result is compared with Ruby's own while the library loads.
  def test_flags_of_objects_are_written_in_one_place
    assert_nowhere(/\*mut (?:rb_sys::)?R[A-Z]\w+/, except: ["strings.rs"])
    assert_equal 1, sources["strings.rs"].scan("*mut RBasic").size
    assert_match(/strings::check_coderange\(/, sources["lib.rs"])
  end

  # Methods that a program may override run while no lock or borrow is held.
  def test_exceptions_are_made_in_one_place
    assert_nowhere(/new_instance\(\((?!\))/, except: %w[guard.rs protocol_websocket/names.rs])
    assert_equal 1, sources["guard.rs"].scan("new_instance(").size
  end

  # `Display` of a Value calls `to_s` in the middle of a message, and `inspect` of magnus ends no thread.
  def test_objects_are_described_before_a_message_is_begun
    assert_nowhere(/\.inspect\(\)|format(_args)?!\(.*\bvalue\(/)
  end

  # Functions that raise for an interrupt are called under `protect`, so that destructors run.
  def test_interrupts_are_caught
    blocking = /rb_thread_(wait_for|check_ints|schedule|sleep|call_without_gvl\b|fd_)|rb_nogvl/
    assert_nowhere(blocking, except: ["exclusive.rs"])
    text = sources["exclusive.rs"]
    assert_equal 1, text.lines.grep_v(%r{\A\s*//}).grep(blocking).size
    assert_match(/protect\(\|\| unsafe \{\s*rb_sys::rb_thread_check_ints/, text)
  end

  def test_objects_in_memory_are_held
    assert_nowhere(/RefCell/, except: ["exclusive.rs", "scratch.rs"])
    assert_nowhere(/\b(Opaque|BoxValue|Lazy)\b/)
    assert_nowhere(/get_or_init/, except: ["clock.rs"])
    assert_nowhere(/unsafe impl.* (Send|Sync) /, except: ["exclusive.rs", "held.rs", "http2/drop_in/frame.rs"])
    assert_nowhere(/Vec<.*\bVALUE\b/)
    # `VALUE` is a number to the compiler: only these, which live on the stack or are static, have such a field.
    # In `Names` and `Look` it is in the type of a function.
    on_the_stack = %w[Held Owner Frame Buffered Opening Emission Window List Symbols Names Field Sides Look Ahead Block]
    structs = sources.flat_map { |_, text| text.scan(/struct (\w+)[^;{(]*(?:\{(.*?)\n\s*\}|\(([^;]*)\);)/m) }
    refute_empty structs
    assert_empty structs.select { |_, fields, tuple| (fields || tuple).match?(/\bVALUE\b/) }.map(&:first) - on_the_stack
  end
end
