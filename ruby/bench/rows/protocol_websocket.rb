# frozen_string_literal: true

require "socket"
require "stringio"
require_relative "../traffic"

module Bench
  # Frames and messages read off a stream.
  module Reading
    module_function

    # +count+ copies of +frame+ in a StringIO, read by what the block makes of a framer for it.
    def memory(contestant, frame, count)
      stream = StringIO.new(frame * count)
      read = yield Protocol::WebSocket::Framer.new(stream)
      lambda do
        stream.rewind
        read.call(count)
        contestant.check(stream.eof?)
        count
      end
    end

    # The same through the kernel, as much at a time as a socket holds.
    def socket(contestant, frame, count)
      ours, peer = UNIXSocket.pair
      wire = frame * count
      read = yield Protocol::WebSocket::Framer.new(ours)
      lambda do
        peer.write(wire)
        read.call(count)
        contestant.check(!ours.wait_readable(0))
        count
      end
    end

    # Reads a number of frames, and checks the last.
    def frames(contestant, size)
      lambda do |framer|
        lambda do |count|
          framer.read_frame while (count -= 1).positive?
          contestant.check(framer.read_frame.payload.bytesize == size)
        end
      end
    end

    def messages(contestant, size)
      lambda do |framer|
        connection = Protocol::WebSocket::Connection.new(framer)
        lambda do |count|
          connection.read while (count -= 1).positive?
          contestant.check(connection.read.size == size)
        end
      end
    end
  end

  # Bytes, and whether masked. The original masks byte by byte on Rubies before 3.3.
  [[13, false], [13, true], [200, false], [200, true], [70_000, true]].each do |size, mask|
    frame = Traffic.frame(:text, "0123456789" * (size / 10) + "abc"[0, size % 10], mask:)
    what = "#{size} B#{" masked" if mask}"
    name = "#{size}B#{"-masked" if mask}"
    count = size > 1_000 ? 8 : 1_000
    if size < 1_000
      row "protocol-ws/frame/#{name}", "Framer#read_frame, #{what}, from a StringIO",
          gem: "protocol_websocket", per: "frame", bar: 3 do |c|
        Reading.memory(c, frame, c.size(count, 3), &Reading.frames(c, size))
      end
      row "protocol-ws/frame-socket/#{name}", "Framer#read_frame, #{what}, from a socket",
          gem: "protocol_websocket", per: "frame", bar: 3 do |c|
        Reading.socket(c, frame, c.size(200, 3), &Reading.frames(c, size))
      end
    end
    bar = mask ? { 200 => 8, 70_000 => 20 }.fetch(size, 4) : 4
    row "protocol-ws/message/#{name}", "Connection#read, #{what}, from a StringIO",
        gem: "protocol_websocket", per: "message", bar: bar do |c|
      Reading.memory(c, frame, c.size(count, 3), &Reading.messages(c, size))
    end
  end
end
