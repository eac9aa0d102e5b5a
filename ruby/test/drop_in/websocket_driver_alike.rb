# frozen_string_literal: true

# Feeds random streams of frames, good and bad, at random splits to a driver and prints what came of each, a line of JSON:
# `ruby websocket_driver_alike.rb FIRST_SEED COUNT`. The same for the original (ORIGINAL=1) and the replacement.
require "json"
if ENV["ORIGINAL"] == "1"
  require "websocket/driver"
else
  $LOAD_PATH.unshift(File.expand_path("../../lib", __dir__))
  require "wireloom/drop_in/websocket_driver"
end

module Alike
  ENVIRONMENT = {
    "REQUEST_METHOD" => "GET", "HTTP_CONNECTION" => "Upgrade", "HTTP_UPGRADE" => "websocket",
    "HTTP_SEC_WEBSOCKET_KEY" => "dGhlIHNhbXBsZSBub25jZQ==", "HTTP_SEC_WEBSOCKET_VERSION" => "13"
  }.freeze
  OPTIONS = [{}, { require_masking: true }, { masking: false, max_length: 200 }].freeze
  OPCODES = ([1, 2, 0, 9] * 10 + [1, 2, 0, 9, 10, 8, 3, 11]).freeze
  TEXTS = ["", "a", "hello w\u00F6rld", "\u20AC" * 50, "x" * 130, "y" * 3000, "\u{1F600}" * 20, "\xC3", "\xED\xA0\x80", "abc\xFF"].freeze
  CLOSES = ["", "\x03\xE8", "\x03\xE8bye", "\x03\xEC", "\x0B\xB8ok", "\x00", "\x03\xE9\xFF"].freeze
  SPLITS = [1, 2, 7, 100, 5000].freeze

  Socket = Struct.new(:env, :written) do
    def write(bytes)
      written << bytes.b
    end
  end

  module_function

  def frame(random)
    opcode = OPCODES.sample(random: random)
    fin = opcode >= 8 ? random.rand(20) != 0 : random.rand(4) != 0
    rsv = random.rand(60).zero? ? random.rand(1..7) << 4 : 0
    texts = opcode > 8 ? 3 : (random.rand(12).zero? ? 10 : 6)
    payload = opcode == 8 ? CLOSES.sample(random: random) : TEXTS.first(texts).sample(random: random)
    header((fin ? 0x80 : 0) | rsv | opcode, payload.b, random.rand(6).zero? ? nil : random.bytes(4))
  end

  def header(first, payload, key)
    mask = key ? 0x80 : 0
    length = payload.bytesize
    head = length < 126 ? [first, mask | length].pack("CC") : [first, mask | 126, length].pack("CCS>")
    return head + payload unless key

    head + key + payload.bytes.each_with_index.map { |octet, at| octet ^ key.getbyte(at % 4) }.pack("C*")
  end

  def outcome(seed)
    random = Random.new(seed)
    input = Array.new(random.rand(1..8)) { frame(random) }.join
    socket = Socket.new(ENVIRONMENT, "".b)
    driver = WebSocket::Driver::Hybi.new(socket, OPTIONS.sample(random: random))
    events = []
    driver.on(:message) { |event| events << [:message, event.data.is_a?(Array) ? event.data : event.data.bytes] }
    driver.on(:error) { |error| events << [:error, error.message] }
    driver.on(:close) { |event| events << [:close, event.code, event.reason] }
    driver.start
    until input.empty?
      driver.parse(input.slice!(0, SPLITS.sample(random: random)))
    end
    [seed, events, socket.written.bytes, driver.state]
  end
end

first, count = ARGV.map(&:to_i)
count.times { |at| puts JSON.generate(Alike.outcome(first + at)) }
