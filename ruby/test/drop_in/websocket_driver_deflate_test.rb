# frozen_string_literal: true

require_relative "websocket_driver_helper"
require_needed "websocket/extensions"
require_relative "../support/permessage_deflate"
require "support/turns"
require "timeout"
require "support/zlibs"

# permessage-deflate by the core, in place of the extension of the gem permessage_deflate.
class WebSocketDriverDeflateTest < Wireloom::TestCase
  include WebSocketDriverHelper
  include Wireloom::Turns

  TAIL = "\x00\x00\xff\xff".b
  MESSAGES = ["Hello" * 100, "Hello" * 100, "", "\u20AC uro" * 3000, "plain" * 2000, "a"].freeze

  # A server's driver whose handshake agreed on +parameters+.
  def deflated(parameters = "", extension: PermessageDeflate, **options)
    driver = hybi({ "HTTP_SEC_WEBSOCKET_EXTENSIONS" => "permessage-deflate#{parameters}" }, **options)
    driver.add_extension(extension)
    driver.start
    assert_includes @socket.take, "\r\nSec-WebSocket-Extensions: permessage-deflate#{parameters}\r\n"
    driver
  end

  # The payloads of the frames that were sent.
  def payloads(wire)
    found = []
    until wire.empty?
      first, second = wire.unpack("CC")
      length, at = second & 0x7F, 2
      length, at = wire.unpack1("S>", offset: 2), 4 if length == 126
      length, at = wire.unpack1("Q>", offset: 2), 10 if length == 127
      found << [first, wire.byteslice(at, length)]
      wire = wire.byteslice((at + length)..)
    end
    found
  end

  # Sends MESSAGES, and inflates what was written by zlib.
  def assert_zlib_inflates(driver, window_bits: 15, takeover: true)
    MESSAGES.each { |message| driver.text(message) }
    sent = payloads(@socket.take)
    assert_equal [0xC1], sent.map(&:first).uniq
    inflate = Zlib::Inflate.new(-window_bits)
    inflated = sent.map do |_, payload|
      inflate = Zlib::Inflate.new(-window_bits) unless takeover
      (inflate.inflate(payload) + inflate.inflate(TAIL)).force_encoding(Encoding::UTF_8)
    end
    assert_equal MESSAGES, inflated
    sent.map { |_, payload| payload.bytesize }
  end

  # Frames of MESSAGES as zlib compresses them.
  def compressed(window_bits: 15, takeover: true)
    deflate = Zlib::Deflate.new(9, -window_bits)
    MESSAGES.map do |message|
      deflate = Zlib::Deflate.new(9, -window_bits) unless takeover
      payload = message.empty? ? "\x00".b : deflate.deflate(message, Zlib::SYNC_FLUSH).delete_suffix(TAIL)
      frame(0xC1, payload, mask: true)
    end
  end

  def test_zlib_inflates_what_the_core_compressed
    gap_of_the_original
    sizes = assert_zlib_inflates(deflated)
    assert_operator sizes[1], :<, sizes[0]
    sizes = assert_zlib_inflates(deflated("; server_no_context_takeover"), takeover: false)
    assert_equal sizes[0], sizes[1]
    [9, 10, 15].each { |bits| assert_zlib_inflates(deflated("; server_max_window_bits=#{bits}"), window_bits: bits) }
  end

  def test_the_core_inflates_what_zlib_compressed
    [["", {}], ["; client_no_context_takeover", { takeover: false }], ["; client_max_window_bits=9", { window_bits: 9 }]].each do |parameters, options|
      driver = deflated(parameters)
      frames = compressed(**options)
      driver.parse(frames.join)
      assert_equal MESSAGES, messages
      assert(messages.all? { |text| text.encoding == Encoding::UTF_8 && text.valid_encoding? })
      driver = deflated(parameters)
      parse_in_steps(driver, frames.join, 7)
      assert_equal MESSAGES, messages
    end
  end

  # With context takeover a message refers to those before it: they leave in the order in which they were compressed.
  def test_several_threads_send
    gap_of_the_original
    [PermessageDeflate, PermessageDeflate.configure(level: 1)].each do |extension|
      driver = deflated(extension: extension)
      words = Array.new(2000) { |at| (at * 7919).to_s(36) }
      Array.new(4) do |at|
        Thread.new do
          random = Random.new(at)
          60.times { |turn| driver.text("#{at}.#{turn} " + Array.new(4000) { words.sample(random: random) }.join(" ")) }
        end
      end.each(&:join)
      inflate = Zlib::Inflate.new(-15)
      seen = payloads(@socket.take).map { |_, payload| inflate.inflate(payload) + inflate.inflate(TAIL) }
      assert_equal Array.new(4) { |at| Array.new(60) { |turn| "#{at}.#{turn}" } }.flatten.sort, seen.map { |text| text[/\A\S+/] }.sort
      4.times do |at|
        random = Random.new(at)
        expected = Array.new(60) { |turn| "#{at}.#{turn} " + Array.new(4000) { words.sample(random: random) }.join(" ") }
        assert(expected == seen.grep(/\A#{at}\./))
      end
    end
  end

  # RFC 6455 §5.5.1: nothing follows a Close frame. Compressing lets other threads run.
  def test_nothing_is_sent_behind_close
    gap_of_the_original
    text = Random.new(1).bytes(100_000).unpack1("H*")
    10.times do
      [->(driver) { driver.close }, ->(driver) { driver.parse(frame(0x88, [1000].pack("n"), mask: true)) }].each do |close|
        driver = deflated
        @socket.take
        sent = nil
        writer = Thread.new { sent = driver.text(text) }
        Thread.pass
        close.call(driver)
        writer.join
        opcodes = payloads(@socket.take).map { |first, _| first & 0xF }
        assert_equal sent ? [1, 8] : [8], opcodes
      end
    end
  end

  # The peer inflates what comes after a message that it did not get.
  def test_a_message_that_was_not_written_is_not_referred_to
    gap_of_the_original
    driver = deflated
    @socket.take
    driver.text("first")
    fails = true
    @socket.define_singleton_method(:write) { |bytes| fails ? raise(Timeout::Error) : super(bytes) }
    assert_raises(Timeout::Error) { driver.text("a message that is lost") }
    fails = false
    driver.text("a message that is lost, and more")
    inflate = Zlib::Inflate.new(-15)
    texts = payloads(@socket.take).map { |_, payload| inflate.inflate(payload) + inflate.inflate(TAIL) }
    assert_equal ["first", "a message that is lost, and more"], texts
  end

  # `close` takes no lock: a signal handler may not.
  def test_close_in_a_signal_handler
    gap_of_the_original
    driver = deflated
    @socket.take
    closed = nil
    before = trap("USR2") do
      closed = driver.close
    rescue ThreadError => e
      closed = e
    end
    Process.kill("USR2", Process.pid)
    sleep 0.001 until closed
    assert_equal [true, :closing], [closed, driver.state]
    assert_equal [0x88], payloads(@socket.take).map(&:first)
  ensure
    trap("USR2", before || "DEFAULT")
  end

  # `write` of the socket may wait, also for a lock that the thread that closes, or that reads the peer's Close, holds.
  def test_close_does_not_wait_for_a_write
    gap_of_the_original
    [->(driver) { driver.close }, ->(driver) { driver.parse(frame(0x88, [1000].pack("n"), mask: true)) }].each do |close|
      driver = deflated
      @socket.take
      lock, begun = Monitor.new, Queue.new
      @socket.define_singleton_method(:write) do |bytes|
        begun << true
        lock.synchronize { super(bytes) }
      end
      writer = nil
      lock.synchronize do
        writer = Thread.new { driver.text("Hello" * 100) }
        begun.pop
        Timeout.timeout(10) { close.call(driver) }
        assert_empty @socket.written
      end
      assert writer.value
      # The thread that wrote has sent Close.
      assert_equal [0xC1, 0x88], payloads(@socket.take).map(&:first)
      refute driver.text("late")
    end
  end

  # The application may close its socket when it learns of the end.
  def test_close_leaves_before_the_events_of_this_thread
    gap_of_the_original
    {
      ->(driver) { driver.parse(frame(0x88, [1000].pack("n"), mask: true)) } => [:close],
      ->(driver) { driver.close && driver.parse(frame(0x88, [1000].pack("n"), mask: true)) } => [:close],
      ->(driver) { driver.parse(frame(0x83, "", mask: true)) } => %i[error close]
    }.each do |close, events|
      # While another thread writes, which may wait for them, and while this one does.
      { ->(&work) { Thread.new(&work).join } => [events, []], ->(&work) { work.call } => [[], events] }.each do |elsewhere, (among, behind)|
        [nil, IOError].each do |error|
          driver = deflated
          log = []
          %i[error close].each { |name| driver.on(name) { log << name } }
          @socket.define_singleton_method(:write) do |bytes|
            log << bytes.getbyte(0)
            next if log.size > 1

            elsewhere.call { close.call(driver) }
            log << :written
            raise error if error
          end
          error ? assert_raises(error) { driver.text("Hello" * 100) } : driver.text("Hello" * 100)
          assert_equal [0xC1, *among, :written, 0x88, *behind], log
          assert_equal :closed, driver.state
        end
      end
    end
  end

  # Its socket may wait until the application, which learns of the end, closes it; and the listeners may wait for locks of the writer's.
  def test_events_do_not_wait_for_a_write_of_another_thread
    {
      ->(driver) { driver.parse(frame(0x88, [1000].pack("n"), mask: true)) } => [:close],
      ->(driver) { driver.parse(frame(0x83, "", mask: true)) } => %i[error close]
    }.each do |close, events|
      driver = deflated
      begun, closed, lock, log = Queue.new, Queue.new, Mutex.new, []
      @socket.define_singleton_method(:write) do |bytes|
        next if bytes.getbyte(0) == 0x88

        begun << true
        closed.pop
      end
      events.each { |name| driver.on(name) { log << [name, Thread.current] } }
      driver.on(:close) do
        closed << true
        lock.synchronize { log << :locked }
      end
      writer = Thread.new { lock.synchronize { driver.text("Hello" * 100) } }
      begun.pop
      Timeout.timeout(10) { close.call(driver) }
      assert writer.value
      assert_equal [*events.map { |name| [name, Thread.current] }, :locked], log
    end
  end

  def test_close_leaves_behind_a_write_that_fails
    gap_of_the_original
    [["message"], %w[message close]].each do |failing|
      driver = deflated
      @socket.take
      writes = %w[message close].each
      @socket.define_singleton_method(:write) do |bytes|
        name = writes.next
        driver.close if name == "message"
        super(bytes)
        raise IOError, name if failing.include?(name)
      end
      assert_equal "message", assert_raises(IOError) { driver.text("Hello" * 100) }.message
      assert_equal [0xC1, 0x88], payloads(@socket.take).map(&:first)
    end
    # Its own error is raised behind a message that was written.
    driver = deflated
    @socket.define_singleton_method(:write) do |bytes|
      raise IOError, "close" if bytes.getbyte(0) == 0x88

      driver.close
    end
    assert_equal "close", assert_raises(IOError) { driver.text("Hello") }.message
  end

  # Compressors and masking keys are for connections that need them.
  def test_an_idle_connection_without_compression_is_small
    gap_of_the_original
    require "objspace"
    codec = hybi.tap(&:start).instance_variable_get(:@codec)
    assert_operator ObjectSpace.memsize_of(codec), :<=, 512
  end

  # The start of a frame that came with a message, which inflated to more.
  def test_what_is_behind_a_message_takes_its_own_length
    gap_of_the_original
    needs_the_usual_allocator
    require "objspace"
    bytes = frame(0xC1, Zlib::Deflate.new(9, -15).deflate("x" * 100_000, Zlib::SYNC_FLUSH).delete_suffix(TAIL), mask: true)
    alone, with_more = ["", "\x81".b].map do |rest|
      driver = deflated("; client_no_context_takeover")
      driver.parse(bytes + rest)
      assert_equal ["x" * 100_000], messages
      ObjectSpace.memsize_of(driver.instance_variable_get(:@codec))
    end
    assert_operator with_more - alone, :<, 200
  end

  # A socket may send again while it writes.
  def test_a_socket_that_sends_while_it_writes
    driver = deflated
    wire = "".b
    @socket.define_singleton_method(:write) do |bytes|
      wire << bytes
      driver.text("second") if wire.bytesize == bytes.bytesize
    end
    driver.text("first")
    inflate = Zlib::Inflate.new(-15)
    assert_equal %w[first second], payloads(wire).map { |_, payload| inflate.inflate(payload) + inflate.inflate(TAIL) }
  end

  def test_the_core_does_it_and_not_zlib
    gap_of_the_original
    driver = deflated
    frames = compressed.join
    made = Zlibs.during do
      driver.parse(frames)
      MESSAGES.each { |message| driver.text(message) }
    end
    assert_equal MESSAGES, messages
    assert_equal 0, made
  end

  def test_an_extension_that_was_configured_does_it_itself
    driver = deflated(extension: PermessageDeflate.configure(level: 1))
    frames = compressed.join
    made = Zlibs.during do
      driver.parse(frames)
      MESSAGES.each { |message| driver.text(message) }
    end
    assert_equal MESSAGES, messages
    assert_equal 2, made
  end

  def test_an_extension_that_was_overridden_is_called
    driver = deflated
    session = driver.instance_variable_get(:@extensions).instance_variable_get(:@sessions)[0][1]
    assert_kind_of PermessageDeflate::Session, session
    seen = 0
    PermessageDeflate::ServerSession.class_eval do
      define_method(:process_incoming_message) do |message|
        seen += 1
        super(message)
      end
    end
    driver = deflated
    driver.parse(compressed.join)
    assert_equal MESSAGES.size, seen
    assert_equal MESSAGES, messages
  ensure
    PermessageDeflate::ServerSession.remove_method(:process_incoming_message)
  end

  def test_binary_messages_and_those_without_compression
    skip "websocket-driver before 0.8 has no binary_data_format" if OLD
    driver = deflated(binary_data_format: :string)
    deflate = Zlib::Deflate.new(9, -15)
    driver.parse(frame(0xC2, deflate.deflate("\xFF" * 5000, Zlib::SYNC_FLUSH).delete_suffix(TAIL), mask: true) + frame(0x81, "plain", mask: true))
    assert_equal ["\xFF".b * 5000, "plain"], messages
    assert_equal [Encoding::BINARY, Encoding::UTF_8], messages.map(&:encoding)
    driver = deflated(binary_data_format: :array)
    driver.parse(frame(0xC2, Zlib::Deflate.new(9, -15).deflate("\x01\xFF", Zlib::SYNC_FLUSH).delete_suffix(TAIL), mask: true))
    assert_equal [[1, 255]], messages
  end

  def test_bounds_and_broken_messages
    gap_of_the_original
    driver = deflated(max_length: 1000)
    compress = ->(text) { Zlib::Deflate.new(9, -15).deflate(text, Zlib::SYNC_FLUSH).delete_suffix(TAIL) }
    driver.parse(frame(0xC1, compress.call("x" * 1000), mask: true))
    assert_equal ["x" * 1000], messages
    driver.parse(frame(0xC1, compress.call("x" * 1001), mask: true))
    assert_equal [1009, "WebSocket frame length too large"], close_event
    driver = deflated
    driver.parse(frame(0xC1, "\xFF\xFF\xFF", mask: true))
    assert_equal 1010, close_event[0]
    assert error_message.start_with?("permessage-deflate: ")
    driver = deflated
    driver.parse(frame(0xC1, compress.call("ab\xFF".b), mask: true))
    assert_equal [1007, "Could not decode a text frame as UTF-8"], close_event
    driver = deflated
    driver.parse(frame(0xA1, "a", mask: true))
    assert_equal 1002, close_event[0]
  end

  def test_both_ends
    socket = ClientSocket.new(url: "ws://x/")
    client = watch(Driver.client(socket))
    client.add_extension(PermessageDeflate)
    server_socket = ClientSocket.new
    server = Driver.server(server_socket)
    server.on(:connect) { server.add_extension(PermessageDeflate) && server.start }
    server.on(:message) { |event| server.text(event.data) }
    client.start
    server.parse(socket.take)
    client.parse(server_socket.take)
    made = Zlibs.during do
      5.times do |at|
        client.text("#{at} " + "Hello" * 50)
        server.parse(socket.take)
        client.parse(server_socket.take)
      end
    end
    assert_equal Array.new(5) { |at| "#{at} " + "Hello" * 50 }, messages
    assert_equal(ORIGINAL ? 4 : 0, made)
  end

  # 64 KiB on the wire become 64 MiB: other threads run meanwhile.
  def test_other_threads_run_meanwhile
    gap_of_the_original
    driver = deflated
    message = frame(0xC2, Zlib::Deflate.new(9, -15).deflate("\0" * (48 << 20), Zlib::SYNC_FLUSH).delete_suffix(TAIL), mask: true)
    # A busy machine may let the other thread run too seldom.
    ran = 5.times.any? { turns { driver.parse(message) } >= 5 }
    assert ran
    assert_equal [48 << 20], messages.map(&:size).uniq
  end
end
