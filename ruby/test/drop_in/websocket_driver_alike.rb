# frozen_string_literal: true

# Puts drivers through random things, good and bad, and prints what came of each, a line of JSON:
# `ruby websocket_driver_alike.rb FIRST_SEED COUNT`. The same for the original (ORIGINAL=1) and the replacement. Against an
# original of before 0.8 (OLD=1) only streams of frames are tried, and the encoding of what they bring is not looked at.
require "json"
if ENV["ORIGINAL"] == "1"
  require "websocket/driver"
else
  $LOAD_PATH.unshift(File.expand_path("../../lib", __dir__))
  require "wireloom/drop_in/websocket_driver"
end

module Alike
  OLD = ENV["OLD"] == "1"
  ENVIRONMENT = {
    "REQUEST_METHOD" => "GET", "HTTP_CONNECTION" => "Upgrade", "HTTP_UPGRADE" => "websocket",
    "HTTP_SEC_WEBSOCKET_KEY" => "dGhlIHNhbXBsZSBub25jZQ==", "HTTP_SEC_WEBSOCKET_VERSION" => "13"
  }.freeze
  OPTIONS = [{}, { require_masking: true }, { masking: false, max_length: 200 }, *([{ binary_data_format: :array }] unless OLD)].freeze
  OPCODES = ([1, 2, 0, 9] * 10 + [1, 2, 0, 9, 10, 8, 3, 11]).freeze
  TEXTS = ["", "a", "hello w\u00F6rld", "\u20AC" * 50, "x" * 130, "y" * 3000, "\u{1F600}" * 20, "\xC3", "\xED\xA0\x80", "abc\xFF"].freeze
  CLOSES = ["", "\x03\xE8", "\x03\xE8bye", "\x03\xEC", "\x0B\xB8ok", "\x00", "\x03\xE9\xFF"].freeze
  SPLITS = [1, 2, 7, 100, 5000].freeze
  ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="

  # Marks the first byte of what it sends, and claims the first reserved bit.
  class Extension
    def name
      "x-mark"
    end

    def type
      "permessage"
    end

    def rsv1
      true
    end

    def rsv2
      false
    end
    alias rsv3 rsv2

    def create_server_session(_offers)
      Session.new
    end

    def create_client_session
      Session.new
    end

    class Session
      def generate_offer
        { "a" => 1 }
      end
      alias generate_response generate_offer

      def activate(_params)
        true
      end

      def process_incoming_message(message)
        raise "not for me" if message.data.start_with?("hello")

        message.data = message.data.reverse if message.rsv1
        message
      end

      def process_outgoing_message(message)
        message.rsv1 = true
        message.data = message.data.b.reverse
        message
      end

      def close; end
    end
  end

  # Records the writes of a driver, without the masks.
  class Socket
    attr_reader :written, :url

    def initialize(env, url)
      @env = env
      @url = url
      @written = []
      define_singleton_method(:env) { @env } if env
    end

    def write(bytes)
      bytes = bytes.b
      if bytes.getbyte(0) >= 0x80 && bytes.bytesize >= 2 && bytes.getbyte(1) >= 0x80
        length = bytes.getbyte(1) & 0x7F
        at = { 126 => 4, 127 => 10 }.fetch(length, 2)
        key = bytes.byteslice(at, 4)
        payload = bytes.byteslice(at + 4..).bytes.each_with_index.map { |octet, index| octet ^ key.getbyte(index % 4) }
        bytes = bytes.byteslice(0, at) + payload.pack("C*")
      end
      @written << bytes
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

  # A whole message, or something in between.
  def good_frame(random, masked)
    opcode = [1, 1, 2, 9, 10].sample(random: random)
    payload = opcode > 8 ? TEXTS.first(3).sample(random: random) : TEXTS.first(6).sample(random: random)
    header(0x80 | opcode, payload.b, masked ? random.bytes(4) : nil)
  end

  def header(first, payload, key)
    mask = key ? 0x80 : 0
    length = payload.bytesize
    head = length < 126 ? [first, mask | length].pack("CC") : [first, mask | 126, length].pack("CCS>")
    return head + payload unless key

    head + key + payload.bytes.each_with_index.map { |octet, at| octet ^ key.getbyte(at % 4) }.pack("C*")
  end

  # A value as what JSON has words for.
  def plain(value)
    case value
    when String then OLD ? value.bytes : [value.encoding.name, value.unpack1("H*")]
    when Struct then [value.class.name, *value.to_a.map { |member| plain(member) }]
    when NoMethodError then value.name # its message is Ruby's, and not the same everywhere
    when Exception then [value.class.name, value.message]
    when Array then OLD ? value : value.map { |member| plain(member) }
    when Symbol, Integer, nil, true, false then value
    else value.class.name
    end
  end

  def watch(driver, events, names = OLD ? %i[message error close] : %i[connect open message ping pong error close])
    names.each do |name|
      driver.on(name) { |event| events << [name, OLD && event.is_a?(Struct) ? event.to_a.map { |member| plain(member) } : plain(event)] }
    end
    driver
  end

  def feed(random, driver, input, events)
    until input.empty?
      @piece = input.slice!(0, SPLITS.sample(random: random))
      raised = try { driver.parse(@piece).then { nil } }
      events << raised if raised
    end
  end

  # The result of the block, or its exception.
  def try
    yield
  rescue StandardError => e
    [:raised, plain(e)]
  end

  # Frames of any kind to a server.
  def frames(random)
    input = Array.new(random.rand(1..8)) { frame(random) }.join
    socket = Socket.new(ENVIRONMENT, nil)
    driver = WebSocket::Driver::Hybi.new(socket, OPTIONS.sample(random: random))
    events = []
    watch(driver, events)
    driver.start
    feed(random, driver, input, events)
    [events, socket.written, driver.state]
  end

  # A conversation: good frames, things sent meanwhile, listeners that raise, send and close.
  def talk(random)
    client = random.rand(2).zero?
    socket = Socket.new(client ? nil : ENVIRONMENT, "ws://user:pa%20ss@example.com:81/a?b=c")
    options = { protocols: ["x", "y"], binary_data_format: [:string, :array].sample(random: random) }
    driver = client ? WebSocket::Driver.client(socket, options) : WebSocket::Driver.rack(socket, options)
    events = []
    watch(driver, events)
    unruly(random, driver, events)
    driver.add_extension(Extension.new) if random.rand(3).zero?
    events << [:early, try { act(random, driver) }] if random.rand(3).zero?
    events << [:header, driver.set_header("X-Name", "value"), driver.set_header("upgrade", "2")] if random.rand(3).zero?
    events << try { driver.start }
    events << try { driver.parse(response(random)).then { nil } } if client
    random.rand(1..6).times do
      feed(random, driver, good_frame(random, !client), events)
      events << try { act(random, driver) }
    end
    feed(random, driver, header(0x88, CLOSES.first(6).sample(random: random).b, client ? nil : "abcd"), events) if random.rand(2).zero?
    [events, socket.written, driver.state, driver.protocol, driver.version, driver.ready_state]
  end

  # Listeners that do something to the driver while it parses.
  def unruly(random, driver, events)
    case random.rand(8)
    when 0 then driver.on(:message) { |event| raise "no" if event.data.size == 1 }
    when 1 then driver.on(:message) { driver.text("again") }
    when 2 then driver.on(:ping) { driver.close("pinged", 3000) }
    when 3 then driver.on(:open) { driver.binary([1, 2, 3]) }
    when 4
      listener = driver.on(:message) { events << [:once] && driver.remove_listener(:message, listener) }
    when 5 then driver.on("message") { driver.remove_all_listeners(:pong) }
    when 6 then driver.on(:message) { (@piece.frozen? ? @piece : @piece.replace("overwritten")) && driver.parse("") }
    end
  end

  def act(random, driver)
    case random.rand(12)
    when 0 then driver.text(TEXTS.first(7).sample(random: random))
    when 1 then driver.binary(TEXTS.sample(random: random).b)
    when 2 then driver.binary([1, 255, 0])
    when 3 then driver.frame("\u00E9t\u00E9".encode("UTF-16LE"))
    when 4 then driver.frame(["h\u00E9", "h\xE9".b, "h\xE9".dup.force_encoding("ISO-8859-1"), [104]].sample(random: random))
    when 5 then driver.ping("p") { driver.text("ponged") }
    when 6 then driver.ping(["", "\xFF".b, "\u00E9"].sample(random: random))
    when 7 then driver.pong("q")
    when 8 then driver.frame("h\xE9".dup.force_encoding("ISO-8859-1"), [:binary, :ping].sample(random: random))
    when 9 then random.rand(4).zero? ? driver.close("g\u00F6ne".encode("ISO-8859-1"), 3001) : driver.listener_count(:message)
    when 10 then random.rand(4).zero? ? driver.close : driver.state
    else WebSocket::Driver.encode([TEXTS[2], TEXTS[2].b, [1, 200]].sample(random: random)).then { |text| plain(text) }
    end
  end

  # An answer to the client's request, good for the most part.
  def response(random)
    fields = ["Upgrade: WebSocket", "Connection: upgrade", "Sec-WebSocket-Accept: #{ACCEPT}"].shuffle(random: random)
    fields << ["X-Y: a", "Sec-WebSocket-Protocol: y", "Sec-WebSocket-Protocol: z", "Sec-WebSocket-Extensions: x-mark",
               "Sec-WebSocket-Extensions: other", "Set-Cookie: a=b\r\nset-cookie:   c  "].sample(random: random)
    fields.pop(random.rand(4)) if random.rand(8).zero?
    fields << "odd header" if random.rand(12).zero?
    status = random.rand(12).zero? ? ["HTTP/1.1 404 No", "HTTP/1.1 101 ", "nonsense", "HTTP/1.1 1010 x"].sample(random: random) : "HTTP/1.1 101 Yes"
    [status, *fields, "", ""].join("\r\n")
  end

  # Requests to a server that parses them itself.
  def request(random)
    socket = Socket.new(nil, nil)
    driver = WebSocket::Driver.server(socket, protocols: "x, y")
    events = []
    watch(driver, events)
    driver.on(:connect) { driver.start }
    events << try { act(random, driver) } if random.rand(2).zero?
    line = ["GET /a?b=%20 HTTP/1.1", "GET / HTTP/1.0", "POST /?? HTTP/1.1", "GET http://x/y HTTP/1.1", "GET /\u00E9 HTTP/1.1", "get / HTTP/1.1",
            "GET  / HTTP/1.1"].sample(random: random)
    line = "GET /chat HTTP/1.1" unless random.rand(3).zero?
    host = ["example.com", "example.com:81", "[::1]:99", "a b", "", "x:y", "%%"].sample(random: random)
    fields = ["Host: #{host}", "Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: #{[13, 13, 13, 8].sample(random: random)}",
              "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Content-Type: a", "X_Under-Score:b", "Sec-WebSocket-Protocol: z, y , x", "Accept: 1",
              "Accept:  2\t"].shuffle(random: random)
    fields.delete_at(random.rand(fields.size)) if random.rand(3).zero?
    ended = random.rand(5).zero? ? "\n" : "\r\n"
    feed(random, driver, [line, *fields, "", ""].join(ended).b, events)
    env = driver.env&.reject { |name, _| name == "rack.input" }
    3.times { feed(random, driver, good_frame(random, true), events) && (events << try { act(random, driver) }) }
    # The original says it again at each call that the request was bad.
    [events.uniq, socket.written, driver.state, env&.map { |name, value| [name, plain(value)] }, driver.url, driver.protocol, driver.version]
  end

  # The drafts before the standard.
  def draft(random)
    env = { "REQUEST_METHOD" => "GET", "HTTP_CONNECTION" => "Upgrade", "HTTP_UPGRADE" => "WebSocket", "HTTP_ORIGIN" => "http://x" }
    if random.rand(2).zero?
      env["HTTP_SEC_WEBSOCKET_KEY1"] = "4 @1  46546xW%0l 1 5"
      env["HTTP_SEC_WEBSOCKET_KEY2"] = ["12998 5 Y3 1  .P00", "1299 5 Y3 1  .P00", " "].sample(random: random)
      env.delete("HTTP_SEC_WEBSOCKET_KEY#{random.rand(1..2)}") if random.rand(6).zero?
      env["rack.input"] = StringIO.new("^n:ds[4U") if random.rand(2).zero?
    end
    socket = Socket.new(env, "ws://example.com/")
    driver = WebSocket::Driver.rack(socket, max_length: 500)
    events = []
    watch(driver, events)
    events << try { act(random, driver) }
    events << try { driver.start }
    feed(random, driver, +"^n:ds[4U", events) if driver.version == "hixie-76" && !env["rack.input"]
    input = Array.new(random.rand(1..5)) do
      ["\x00hello\xFF", "\x00\xC3\xA9\xFF", "\x7Fx\xFF", "\x80\x03abc", "\x80\x81\x01#{"z" * 129}", "\x00#{"x" * 300}\xFF", "\x80\x00"].sample(random: random).b
    end
    input << ["\xFF\x00", "\x00#{"x" * 600}\xFF", "\x80\xFF\x7F"].sample(random: random).b if random.rand(3).zero?
    feed(random, driver, input.join, events)
    events << try { act(random, driver) }
    [events, socket.written, driver.state, driver.version]
  end

  SCENARIOS = (OLD ? %i[frames] : %i[frames talk request draft]).freeze

  def outcome(seed)
    random = Random.new(seed)
    scenario = SCENARIOS[seed % SCENARIOS.size]
    [seed, scenario, *public_send(scenario, random)]
  end

  # Replaces strings that JSON cannot hold.
  def words(value)
    case value
    when Array then value.map { |member| words(member) }
    when String
      text = value.dup.force_encoding("UTF-8")
      text.valid_encoding? ? text : value.unpack1("H*")
    else value
    end
  end
end

WebSocket::Driver::Client.singleton_class.class_eval do
  remove_method :generate_key
  define_method(:generate_key) { "dGhlIHNhbXBsZSBub25jZQ==" }
end

first, count = ARGV.map(&:to_i)
count.times { |at| puts JSON.generate(Alike.words(Alike.outcome(first + at))) }
