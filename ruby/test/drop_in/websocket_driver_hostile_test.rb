# frozen_string_literal: true

require_relative "websocket_driver_helper"

# Applications change or reuse a driver while it parses.
class WebSocketDriverHostileTest < Wireloom::TestCase
  include WebSocketDriverHelper

  THREE = %w[a b c].freeze

  def three
    THREE.map { |letter| frame(0x81, letter * 50, mask: true) }.join
  end

  # A read buffer that is used again, within a listener.
  def test_a_chunk_that_listeners_change
    changes = [->(chunk) { chunk.clear }, ->(chunk) { chunk.replace("\x83\x00".b * 200) }, ->(chunk) { chunk << "\x83\x00".b },
               ->(chunk) { chunk.replace(chunk.byteslice(0, 60)) }, ->(chunk) { chunk.setbyte(-1, 0xFF) }]
    changes.each do |change|
      [three, three + "\x81".b, frame(0x81, "a" * 50)].each do |input|
        chunk = input.dup
        driver = open_hybi
        driver.on(:message) do
          change.call(chunk)
          GC.start
        end
        driver.parse(chunk)
        assert_equal input.bytesize > 60 ? THREE : ["a"], messages.map { |text| text[0] }
        assert_equal :open, driver.state
      end
    end
  end

  def test_a_listener_that_leaves_by_every_door
    doors = [-> { throw :out }, -> { Thread.current.kill }, -> { Fiber.yield }, -> { raise Interrupt }]
    doors.each do |door|
      driver = open_hybi
      left = false
      driver.on(:message) { left || (left = true) && door.call }
      Thread.new do
        Fiber.new { catch(:out) { driver.parse(three) } }.resume
      rescue Interrupt
        # Not a StandardError.
      end.join
      driver.parse(frame(0x81, "d", mask: true))
      assert_equal %w[a b c d], messages.map { |text| text[0] }
    end
  end

  def test_a_listener_that_parses_without_end
    driver = open_hybi
    @events = nil
    driver.remove_all_listeners
    driver.on(:message) { driver.parse(frame(0x81, "again")) }
    assert_raises(SystemStackError) { driver.parse(frame(0x81, "again")) }
    driver.remove_all_listeners
    watch(driver)
    driver.parse(frame(0x81, "over", mask: true))
    assert_includes messages, "over"
  end

  def test_a_socket_that_does_not_write
    driver = open_hybi
    def @socket.write(_bytes)
      raise IOError, "closed"
    end
    assert_raises(IOError) { driver.parse(frame(0x89, "p") + frame(0x81, "behind")) }
    driver.parse("")
    assert_equal ["behind"], messages
    assert_raises(IOError) { driver.text("x") }
    assert_raises(IOError) { driver.close }
    assert_equal :open, driver.state
  end

  def test_bounds_of_any_size
    { 2**70 => "a", 2**63 => "a", 1 => "a", 0 => nil, -5 => nil }.each do |bound, heard|
      driver = open_hybi(max_length: bound)
      driver.parse(frame(0x81, "a"))
      assert_equal [heard].compact, messages
      assert_equal "WebSocket frame length too large", error_message unless heard
    end
    driver = open_hybi(max_length: 2**70)
    driver.parse([0x82, 127, 2**62].pack("CCQ>") + "begun")
    assert_equal :open, driver.state
  end

  def test_threads
    failures = Queue.new
    counts = Array.new(6) do
      Thread.new do
        heard = 0
        socket = Socket.new(env: ENVIRONMENT)
        driver = Driver::Hybi.new(socket, masking: true)
        driver.on(:error) { |error| failures << error.message }
        driver.on(:message) do |event|
          heard += event.data.bytesize
          Thread.pass
        end
        driver.start
        100.times do |at|
          driver.parse(frame(0x81, "x" * at * 10, mask: true) + frame(0x89, "p", mask: true))
          driver.text("y" * at)
          GC.compact if at % 49 == 0 && GC.respond_to?(:compact)
        end
        heard
      end
    end
    assert_equal [49_500] * 6, counts.map(&:value)
    assert_empty failures
  end

  # The original cannot: its constants are not shareable.
  def test_ractors
    needs_sound_ractors
    gap_of_the_original
    input = (frame(0x81, "Hello", mask: true) + frame(0x82, "\xFF", mask: true) + frame(0x88, "\x03\xE8", mask: true)).freeze
    ractor = Ractor.new(input) do |bytes|
      socket = Class.new { def write(text) = text }.new
      driver = WebSocket::Driver.server(socket, binary_data_format: :array)
      heard = []
      driver.on(:connect) { driver.start }
      driver.on(:message) { |event| heard << event.data }
      driver.on(:close) { |event| heard << event.code }
      driver.parse("GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" \
                   "Sec-WebSocket-Key: eA==\r\n\r\n")
      driver.parse(bytes)
      heard
    end
    assert_equal ["Hello", [255], 1000], ractor.respond_to?(:value) ? ractor.value : ractor.take
    ractor = Ractor.new do
      socket = Struct.new(:url, :sent) { def write(text) = sent << text }.new("ws://localhost/", [])
      WebSocket::Driver.client(socket).start
      socket.sent.size
    end
    assert_equal 1, ractor.respond_to?(:value) ? ractor.value : ractor.take
  end
end
