# frozen_string_literal: true

# Puts framers and connections through random things, good and bad, and prints what came of each, a line of JSON:
# `ruby protocol_websocket_alike.rb FIRST_SEED COUNT`. The same for the original (ORIGINAL=1) and the replacement.
require "json"
require "stringio"
if ENV["ORIGINAL"] == "1"
  require "protocol/websocket"
  require "protocol/websocket/headers"
  require "protocol/websocket/extensions"
else
  $LOAD_PATH.unshift(File.expand_path("../../lib", __dir__))
  require "wireloom/drop_in/protocol_websocket"
end

# The same keys for both.
SecureRandom.define_singleton_method(:bytes) { |length| "wxyz"[0, length] }

module Alike
  WS = Protocol::WebSocket
  TEXTS = ["", "a", "hello w\u00F6rld", "\u20AC" * 50, "x" * 130, "y" * 3000, "\u{1F600}" * 20, "z" * 70_000].freeze
  BAD = ["\xC3", "\xED\xA0\x80", "abc\xFF"].freeze
  CLOSES = ["", "\x03\xE8", "\x03\xE8bye", "\x03\xEC", "\x0B\xB8ok", "\x00", "\x03\xE9gone", "\x07\xD0", "\x13\x88"].freeze

  # A stream that records its calls.
  class Stream
    attr_reader :calls

    def initialize(input)
      @input = StringIO.new(input)
      @calls = []
    end

    def read(length)
      @calls << [:read, length]
      @input.read(length)
    end

    def write(bytes)
      @calls << [:write, Alike.plain(bytes)]
      bytes.bytesize
    end

    def flush
      @calls << [:flush]
    end

    def close
      @calls << [:close]
    end
  end

  # One in memory, as StringIO has them, but for what is written.
  class Memory < StringIO
    def calls
      []
    end

    def write(bytes)
      bytes.bytesize
    end

    def close; end
  end

  # A subclass of the connection, as applications have.
  class Reader < WS::Connection
    attr_reader :seen

    def initialize(...)
      super
      @seen = []
    end

    def receive_ping(frame)
      @seen << frame.unpack
      super
    end

    def unpack_frames(frames, **options)
      super.dup << "!"
    end
  end

  class Note < WS::TextFrame
    def apply(connection)
      connection.receive_text(self)
    end

    def read_message(buffer)
      [:note, buffer.bytesize]
    end
  end

  module_function

  def frame(random, masked)
    opcode = ([1, 2, 0, 9] * 10 + [1, 2, 0, 9, 10, 8, 3, 11]).sample(random: random)
    fin = opcode >= 8 ? random.rand(20) != 0 : random.rand(3) != 0
    rsv = random.rand(80).zero? ? random.rand(1..7) << 4 : 0
    payload = opcode == 8 ? CLOSES.sample(random: random) : TEXTS.first(opcode > 8 ? 3 : 8).sample(random: random)
    payload = BAD.sample(random: random) if random.rand(60).zero?
    bytes = header((fin ? 0x80 : 0) | rsv | opcode, payload.b, masked ? random.bytes(4) : nil)
    bytes.setbyte(1, bytes.getbyte(1) ^ random.rand(256)) if random.rand(80).zero?
    bytes
  end

  def header(first, payload, key)
    mask = key ? 0x80 : 0
    length = payload.bytesize
    head =
      if length < 126 then [first, mask | length].pack("CC")
      elsif length < 65_536 then [first, mask | 126, length].pack("CCS>")
      else [first, mask | 127, length].pack("CCQ>")
      end
    return head + payload unless key

    head + key + payload.bytes.each_with_index.map { |octet, at| octet ^ key.getbyte(at % 4) }.pack("C*")
  end

  # A value as what JSON has words for.
  def plain(value)
    case value
    when String then [value.encoding.name, value.bytesize > 400 ? value.hash_of_bytes : value.unpack1("H*")]
    when WS::Message then [value.class.name, plain(value.buffer)]
    when WS::Frame then [value.class.name, *value.to_ary.map { |member| plain(member) }, value.data?, value.control?, value.finished?, value.length]
    when WS::ProtocolError then [value.class.name, value.message, value.code]
    when NoMethodError then value.name # its message is Ruby's, and not the same everywhere
    when Exception then [value.class.name, value.message]
    when Array then value.map { |member| plain(member) }
    when Symbol, Integer, nil, true, false then value
    else value.class.name
    end
  end

  def try
    plain(yield)
  rescue StandardError => e
    [:raised, plain(e)]
  end

  def input(random)
    masked = random.rand(2).zero?
    input = Array.new(random.rand(1..8)) { frame(random, masked) }.join
    random.rand(3).zero? ? input.byteslice(0, random.rand(input.bytesize + 1)) : input
  end

  def stream(random, input)
    (random.rand(3).zero? ? Memory : Stream).new(input)
  end

  # Frames, one after the other.
  def frames(random)
    stream = stream(random, input(random))
    framer = random.rand(4).zero? ? WS::Framer.new(stream, WS::FRAMES.merge(1 => Note)) : WS::Framer.new(stream)
    found = Array.new(9) { random.rand(6).zero? ? try { framer.read_frame(random.rand(300)) } : try { framer.read_frame } }
    [found, stream.calls]
  end

  # Messages, as a connection reads them, and what it answers.
  def messages(random)
    stream = stream(random, input(random))
    framer = random.rand(6).zero? ? WS::Framer.new(stream, WS::FRAMES.merge(1 => Note)) : WS::Framer.new(stream)
    kind = random.rand(5).zero? ? Reader : WS::Connection
    connection = kind.new(framer, mask: [nil, true, "abcd"].sample(random: random))
    found = []
    9.times do
      found << try { connection.read }
      found << connection.closed? << connection.frames.size
      found << try { act(random, connection) } if random.rand(4).zero?
      found << try { connection.read_frame { |frame| found << plain(frame) } } if random.rand(6).zero?
    end
    found << plain(connection.seen) if kind == Reader
    [found, stream.calls]
  end

  def act(random, connection)
    case random.rand(16)
    when 0 then connection.write(TEXTS.sample(random: random))
    when 1 then connection.write(TEXTS.sample(random: random).b)
    when 2 then connection.send_text("\u00E9")
    when 3 then connection.send_binary("\u00E9")
    when 4 then connection.send_ping("p")
    when 5 then connection.send_ping
    when 6 then connection.write(WS::TextMessage.new("text"))
    when 7 then connection.write(WS::BinaryMessage.new("\xFF".b))
    when 8 then connection.write(WS::PingMessage.new)
    when 9 then random.rand(3).zero? ? connection.send_close(*[[], [1001], [3000, "h\xE9".dup.force_encoding("ISO-8859-1")]].sample(random: random)) : nil
    when 10 then random.rand(3).zero? ? connection.close!.class.name : nil
    when 11 then random.rand(3).zero? ? connection.close(1001, "away") : nil
    when 12 then random.rand(3).zero? ? connection.close_write([nil, RuntimeError.new("failed")].sample(random: random)) : nil
    when 13 then random.rand(4).zero? ? connection.shutdown : nil
    when 14 then connection.write(nil)
    else connection.reserve!(random.rand(1..4))
    end
  end

  # The attributes of single frames.
  def alone(random)
    kind = [WS::Frame, WS::TextFrame, WS::BinaryFrame, WS::ContinuationFrame, WS::PingFrame, WS::PongFrame, WS::CloseFrame].sample(random: random)
    options = { flags: random.rand(8), mask: [true, false, nil, "abcd", "bad"].sample(random: random) }
    payload = [*TEXTS, *BAD, "h\u00E9".encode("UTF-16LE")].sample(random: random)
    made = kind == WS::CloseFrame ? kind.new(mask: options[:mask]) : kind.new([true, false].sample(random: random), **options)
    found = [try { made.to_ary }]
    # Keys have four bytes; the original masks with others too.
    made.mask = "four" if options[:mask] == "bad"
    found << (kind == WS::CloseFrame ? try { made.pack([nil, 1000, 1001, 4000, 2000, 10].sample(random: random), payload) } : try { made.pack(payload.dup) })
    found << try { made.unpack } << try { made.read_message(made.unpack) } << try { made <=> kind.new } << try { made == made.dup }
    found << try { made.reply(1001, "x") } << try { made.reply(mask: "wxyz") } << try { made.flag?(4) }
    stream = Stream.new("".b)
    made.mask = "bad" if random.rand(10).zero?
    found << try { WS::Framer.new(stream).write_frame(made) }
    [found, stream.calls]
  end

  # Agreeing on extensions, and compressed messages.
  def extensions(random)
    # Not 8 bits: zlib has no such window, so that the original raises for every message.
    offers = [["permessage-deflate"], ["permessage-deflate; client_max_window_bits=#{random.rand(9..15)}"], ["permessage-deflate; server_max_window_bits=10;client_max_window_bits"],
              ["other", "permessage-deflate ; server_no_context_takeover"], ["permessage-deflate; client_no_context_takeover", "permessage-deflate"],
              ["permessage-deflate; unknown=1"], ["permessage-deflate; server_max_window_bits=x"], []].sample(random: random)
    found = []
    server = WS::Extensions::Server.default
    found << try { server.accept(offers) { |header| found << plain(header) } && [] }
    client = WS::Extensions::Client.new([[WS::Extension::Compression, [{}, { client_max_window_bits: [7, *9..16].sample(random: random) }, { server_no_context_takeover: true }].sample(random: random)]])
    found << try { client.offer { |header| found << plain(header) } && [] }
    found << try { client.accept(offers.first(1)).map { |_, options| options.inspect.delete(" ").gsub(/:(\w+)=>/, '\1:') } }
    found << try { WS::Extensions.parse(offers).to_a }
    found << [server, client].map { |side| side.accepted.size }
    wire = Stream.new("".b)
    sender = WS::Connection.new(WS::Framer.new(wire), mask: true)
    try { client.apply(sender) && nil }
    texts = TEXTS.drop(1).sample(4, random: random)
    texts.each { |text| found << try { sender.send_text(text).flags } << try { sender.send_binary(text, compress: random.rand(2).zero?).flags } }
    written = wire.calls.filter_map { |name, (_, bytes)| bytes if name == :write }
    # Of compressed frames only the first byte: the core compresses to other bytes than zlib, which inflates them to the same
    # messages (see the tests of permessage-deflate).
    [found, written.each_slice(2).map { |header, payload| header[0, 2].hex.nobits?(0x40) ? [header, payload] : header[0, 2] }]
  end

  SCENARIOS = %i[frames messages messages alone extensions].freeze

  def outcome(seed)
    random = Random.new(seed)
    scenario = SCENARIOS[seed % SCENARIOS.size]
    [seed, scenario, *public_send(scenario, random)]
  end
end

class String
  # Instead of long strings.
  def hash_of_bytes
    Digest::SHA1.hexdigest(b)
  end
end

first, count = ARGV.map(&:to_i)
count.times { |at| puts JSON.generate(Alike.outcome(first + at)) }
