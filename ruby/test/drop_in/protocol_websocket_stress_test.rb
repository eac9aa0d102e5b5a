# frozen_string_literal: true

# GC.stress: short
require_relative "../test_helper"
original_or_drop_in "protocol_websocket", "protocol/websocket"
require "protocol/websocket/connection"
require "protocol/websocket/message"
require "stringio"

# Little, so that it bears a garbage collection at every allocation. leak_test.rb reads a million messages.
class ProtocolWebSocketStressTest < Wireloom::TestCase
  WS = Protocol::WebSocket

  def wire
    @wire ||= StringIO.new.tap do |io|
      framer = WS::Framer.new(io)
      framer.write_frame(WS::TextFrame.new(mask: "abcd").pack("häßlich"))
      framer.write_frame(WS::TextFrame.new(false).pack("gr\xc3".b))
      framer.write_frame(WS::PingFrame.new.pack("Yo"))
      framer.write_frame(WS::ContinuationFrame.new(mask: "abcd").pack("\xbcn".b))
      framer.write_frame(WS::BinaryFrame.new.pack("\x00" * 300))
    end.string
  end

  # Not a StringIO, so that it is read by `read`.
  class Duck < StringIO
  end

  def test_reads_frames_and_messages
    [StringIO, Duck].each do |kind|
      frames = WS::Framer.new(kind.new(wire.b))
      assert_equal ["häßlich".b, "gr\xc3".b, "Yo", "\xbcn".b, "\x00" * 300], Array.new(5) { frames.read_frame.unpack }
      stream = kind.new(wire.b)
      def stream.write(_bytes); end
      connection = WS::Connection.new(WS::Framer.new(stream))
      assert_equal ["häßlich", "grün", "\x00" * 300], Array.new(3) { connection.read.buffer }
      assert_raises(EOFError) { connection.read }
    end
  end
end
