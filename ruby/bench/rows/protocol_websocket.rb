# frozen_string_literal: true

require "socket"
require "stringio"
require_relative "../traffic"

module Bench
  # Frames and messages read off a stream.
  module Reading
    # What the masked rows took on Ruby 3.3, where the original masks natively.
    NEW = Gem::Version.new(RUBY_VERSION) >= Gem::Version.new("3.3")

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

    # Reads so many frames, and looks at the last.
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

  # Bytes, whether masked, what the original took to read a frame and a message on Ruby 3.1, and a message on 3.3.
  [
    [13, false, 744, 1_820, 1_820], [13, true, 901, 3_660, 2_200],
    [200, false, 1_054, 1_890, 1_890], [200, true, 1_166, 22_500, 2_860],
    [70_000, true, nil, 6_796_000, 161_000]
  ].each do |size, mask, frame_took, message_took, message_took_new|
    frame = Traffic.frame(:text, "0123456789" * (size / 10) + "abc"[0, size % 10], mask:)
    what = "#{size} B#{" masked" if mask}"
    name = "#{size}B#{"-masked" if mask}"
    count = size > 1_000 ? 8 : 1_000
    if frame_took
      row "protocol-ws/frame/#{name}", "Framer#read_frame, #{what}, from a StringIO",
          gem: "protocol_websocket", per: "frame", bar: 3, published: frame_took do |c|
        Reading.memory(c, frame, c.size(count, 3), &Reading.frames(c, size))
      end
      row "protocol-ws/frame-socket/#{name}", "Framer#read_frame, #{what}, from a socket",
          gem: "protocol_websocket", per: "frame" do |c|
        Reading.socket(c, frame, c.size(200, 3), &Reading.frames(c, size))
      end
    end
    row "protocol-ws/message/#{name}", "Connection#read, #{what}, from a StringIO",
        gem: "protocol_websocket", per: "message", bar: size > 1_000 ? 50 : 4,
        published: Reading::NEW ? message_took_new : message_took do |c|
      Reading.memory(c, frame, c.size(count, 3), &Reading.messages(c, size))
    end
  end
end
