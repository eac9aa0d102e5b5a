# frozen_string_literal: true

# `clients.rb cable|idle PORT COUNT`: the clients of a server in a process of their own, for rows/applications.rb. They use no library that
# is measured.
require "json"
require "socket"

HANDSHAKE = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" \
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: actioncable-v1-json\r\n\r\n"
SUBSCRIBE = JSON.generate(command: "subscribe", identifier: JSON.generate(channel: "RoomChannel"))

# A client: counts the frames of 126 bytes and more, which are what is broadcast.
class Client
  attr_reader :socket

  def initialize(port)
    @socket = TCPSocket.new("127.0.0.1", port)
    @socket.write(HANDSHAKE)
    @buffer = "".b
    @buffer << @socket.readpartial(4096) until @buffer.include?("\r\n\r\n")
    @buffer.slice!(0, @buffer.index("\r\n\r\n") + 4)
  end

  # Sends a frame of at least 126 bytes, with a mask of zeros.
  def send_text(text)
    text = text.ljust(126)
    @socket.write([0x81, 0x80 | 126, text.bytesize, 0].pack("CCS>L") << text)
  end

  # The payloads that have arrived.
  def frames
    @buffer << @socket.readpartial(65_536)
    payloads = []
    while @buffer.bytesize >= 4
      length, header = @buffer.getbyte(1), 2
      length, header = @buffer.unpack1("S>", offset: 2), 4 if length == 126
      break if @buffer.bytesize < header + length

      payloads << @buffer.slice!(0, header + length).byteslice(header, length)
    end
    payloads
  end
end

$stdout.sync = true
what, port, count = ARGV
clients = []
case what
when "cable"
  count.to_i.times do
    client = Client.new(port)
    client.send_text(SUBSCRIBE)
    nil until client.frames.any? { |payload| payload.include?("confirm_subscription") }
    clients << client
  end
  puts "subscribed"
  by_socket = clients.to_h { |client| [client.socket, client] }
  received = 0
  while (ready, = IO.select(by_socket.keys))
    ready.each { |socket| received += by_socket[socket].frames.count { |payload| payload.bytesize > 125 } }
    next if received < clients.size

    puts received
    received = 0
  end
when "idle"
  while $stdin.gets
    (count.to_i / 10.0).ceil.times do
      client = Client.new(port)
      client.send_text("0123456789" * 20)
      nil until client.frames.any?
      clients << client
    end
    puts clients.size
  end
end
