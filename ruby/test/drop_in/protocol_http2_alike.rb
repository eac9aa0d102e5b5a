# frozen_string_literal: true

# Plays random exchanges of a client and a server of protocol-http2, and random header lists, and prints, seed by seed, what was written
# and what the programs saw. `ruby protocol_http2_alike.rb FIRST COUNT`; ORIGINAL=1 plays the original.
require "json"
$LOAD_PATH.unshift(File.expand_path("../../lib", __dir__))
if ENV["ORIGINAL"] == "1"
  %w[framer connection stream client server].each { |part| require "protocol/http2/#{part}" }
else
  require "wireloom/drop_in/protocol_http2"
end

# The bytes of one direction, and all that were ever written.
class AlikeWire
  attr_accessor :peer
  attr_reader :all

  def initialize
    @bytes = "".b
    @all = "".b
  end

  def take(bytes) = @bytes << bytes

  def write(bytes)
    @all << bytes
    peer.take(bytes)
  end

  # As an IO: nil at the end, "" for nothing.
  def read(length)
    return "".b if length.zero?

    @bytes.slice!(0, length) unless @bytes.empty?
  end

  def empty? = @bytes.empty?
  def flush = nil
  def close = nil
  def closed? = false
end

# One exchange.
class ProtocolHTTP2Exchange
  NAMES = %w[accept x-one X-Two cookie :path content-type x-three].freeze
  include Protocol::HTTP2

  def initialize(seed)
    @random = Random.new(seed)
    @log = []
  end

  def play
    tables
    connections
    @log
  end

  private

  def pick(list) = list.empty? ? nil : list[@random.rand(list.size)]
  def chance(share) = @random.rand < share

  def noted(name)
    @log << [name, yield]
  rescue StandardError => e
    @log << [name, e.class.name, e.message[0, 60]]
  end

  def word
    pick([-> { "" }, -> { "w#{@random.rand(20)}" }, -> { "v" * @random.rand(300) }, -> { @random.bytes(@random.rand(30)).unpack1("H*") }]).call
  end

  def headers
    Array.new(1 + @random.rand(8)) { [pick(NAMES), word] }
  end

  def tables
    options = { huffman: pick(%i[always never shorter]), index: pick(%i[all static never]) }
    encoder, decoder = Protocol::HPACK::Context.new(**options), Protocol::HPACK::Context.new
    4.times do
      limit = chance(0.3) ? pick([0, 100, 4096, 5000]) : nil
      list = headers
      block = Protocol::HPACK::Compressor.new("".b, encoder, table_size_limit: limit).encode(list)
      @log << [:block, block.unpack1("H*"), encoder.table_size, encoder.compute_current_table_size]
      # A block that ends too early, in a context of its own.
      cut = block.byteslice(0, @random.rand(block.bytesize))
      @log << [:cut, begin
        Protocol::HPACK::Decompressor.new(cut, decoder.dup).decode.size
      rescue StandardError
        :broken
      end]
      decoded = Protocol::HPACK::Decompressor.new(block, decoder, table_size_limit: 8192).decode
      @log << [:decoded, decoded, decoded == list, decoder.table.size, decoder.table_size]
      @log << [:commands, Protocol::HPACK::Context.new(**options).encode(list).map(&:to_a)]
    end
  end

  def connections
    wires = [AlikeWire.new, AlikeWire.new]
    wires[0].peer, wires[1].peer = wires[1], wires[0]
    type = chance(0.2) ? Stream : stream_class
    @client, @server = Client.new(Framer.new(wires[0])), Server.new(Framer.new(wires[1]))
    [@client, @server].each do |connection|
      connection.define_singleton_method(:create_stream) { |id = next_stream_id| super(id) { |at, number| type.create(at, number) } }
    end
    @wires = { @client => wires[0], @server => wires[1] }
    @client.open!
    @server.open!
    override(pick([@client, @server])) if chance(0.4)
    (8 + @random.rand(20)).times { step }
    deliver
    @log << [:wires, wires.map { |wire| wire.all.unpack1("H*") }]
    @log << [:states, [@client, @server].map { |connection| [connection.state, connection.streams.transform_values(&:state).to_a] }]
    @log << [:windows, [@client, @server].map { |connection| [connection.local_window, connection.remote_window].map(&:available) }]
  end

  # Methods of streams that a program may override, each with a share of its own; all note their calls.
  def stream_class
    log = @log
    overrides = {
      process_headers: ->(list) { list },
      process_data: ->(data) { data&.bytesize },
      closed: ->(_) {},
      window_updated: ->(used) { used },
      receive_headers: ->(_) {},
      receive_data: ->(_) {},
      update_local_window: ->(_) {},
      send_window_update: ->(_) {},
      request_window_update: ->(_) {},
      consume_remote_window: ->(_) {},
      write_frame: ->(_) {},
      open!: ->(stream) { stream.state },
      close!: ->(stream) { stream.state },
      send_headers: ->(_) {},
      available_frame_size: ->(size) { size },
      initialize: ->(_) {}
    }
    chosen = overrides.select { |name, _| chance(%i[process_headers process_data closed window_updated].include?(name) ? 0.7 : 0.15) }
    Class.new(Stream) do
      chosen.each do |name, noted|
        define_method(name) { |*list, **options| super(*list, **options).tap { |result| log << [name, id, noted.call(result)] } }
      end
    end
  end

  # The same for connections: in the object, its class, or a module.
  def override(connection)
    log = @log
    names = %i[
      receive_headers receive_data receive_window_update update_local_window write_frame encode_headers decode_headers delete
      accept_stream consume_remote_window synchronize ignore_frame? consume_window
    ].select { chance(0.15) }
    mod = Module.new do
      names.each { |name| define_method(name) { |*list, &block| super(*list, &block).tap { log << [name, list.size] } } }
    end
    chance(0.5) ? connection.extend(mod) : connection.singleton_class.prepend(mod)
    return unless chance(0.3)

    mod.define_method(:close!) { |*list| super(*list).tap { log << [:late, state] } }
  end

  def deliver
    10.times do
      @wires.each do |connection, wire|
        noted(:read) { connection.read_frame&.class&.name } until wire.empty?
      end
    end
  end

  # One that may be changed at any time; the windows of streams follow.
  def setting
    pick([[Settings::INITIAL_WINDOW_SIZE, pick([10, 3000, 70_000])], [Settings::MAXIMUM_FRAME_SIZE, 16_384 + @random.rand(9000)],
          [Settings::HEADER_TABLE_SIZE, pick([0, 200, 9000])], [Settings::MAXIMUM_CONCURRENT_STREAMS, 2 + @random.rand(4)]])
  end

  def step
    connection = pick([@client, @server])
    stream = pick(connection.streams.values)
    case @random.rand(17)
    when 0..3
      noted(:open) { @client.create_stream.send_headers(headers, chance(0.3) ? END_STREAM : 0).inspect && nil }
    when 4..5
      noted(:headers) { stream&.send_headers(headers, chance(0.3) ? END_STREAM : 0) && nil }
    when 6..8
      noted(:data) do
        options = chance(0.2) ? { padding_size: @random.rand(20) } : {}
        stream&.send_data("d" * [@random.rand(3000), stream.available_frame_size].min, chance(0.3) ? END_STREAM : 0, **options) && nil
      end
    when 9 then noted(:reset) { stream&.send_reset_stream(pick([0, 8, 7])) && nil }
    when 10 then noted(:ping) { connection.send_ping(@random.bytes(8)) && nil }
    when 11 then noted(:window) { connection.send_window_update(1 + @random.rand(1000)) && nil }
    when 12 then noted(:long) { stream&.send_headers([["x-long", @random.bytes(9_000).unpack1("H*")]]) && nil }
    when 13 then noted(:settings) { connection.send_settings([setting]) && nil }
    when 14 then noted(:push) { pick(@server.streams.values)&.send_push_promise(headers) && nil }
    when 15 then chance(0.2) ? noted(:goaway) { connection.send_goaway(pick([0, 0, 2]), pick(["", "bye"])) && nil } : deliver
    else deliver
    end
    noted(:raw) { @wires[connection].take([0, 0, 3, pick([0, 1, 2, 4, 6, 9, 20]), 4, @random.rand(5)].pack("C5N") << "abc") && nil } if chance(0.02)
    deliver if chance(0.3)
  end
end

first, count = ARGV.map(&:to_i)
count.times { |at| puts JSON.generate([first + at, ProtocolHTTP2Exchange.new(first + at).play]) }
