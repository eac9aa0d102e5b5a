# frozen_string_literal: true

# Plays random exchanges of a client and a server and prints, seed by seed, all that their programs saw: events, frames, bytes,
# states, windows. `ruby http_2_alike.rb FIRST COUNT`; ORIGINAL=1 plays the original, PATCHED=1 gives every object methods of
# its own before those that frames go through. FREE=1 also pushes beside other streams, and goes away at any time. Without it there
# are upgrades, and PRIORITY before requests: the original's GOAWAY does not name the streams of these.
require "json"
$LOAD_PATH.unshift(File.expand_path("../../lib", __dir__))
require(ENV["ORIGINAL"] == "1" ? "http/2" : "wireloom/drop_in/http_2")

# One exchange. What correct programs do, and where the original does what the specification says.
class Exchange
  REQUEST = [[":method", "POST"], [":scheme", "https"], [":authority", "www.example.org"], [":path", "/r"]].freeze
  EVENTS = %i[reserved active headers promise_headers data half_close close priority window local_window].freeze
  # For each class, those that frames go through.
  THROUGH = { connection: %i[send encode receive << settings goaway window_update], stream: %i[send receive << close window_update] }
            .freeze

  FREE = ENV["FREE"] == "1"

  def initialize(seed)
    @random = Random.new(seed)
    @log = []
    @client = HTTP2::Client.new(**settings)
    @server = HTTP2::Server.new(**settings)
    @ends = { @client => "c", @server => "s" }
    @wires = { @client => "".b, @server => "".b }
    @streams = { @client => [], @server => [] }
    @ends.each_key { |connection| listen(connection) }
    patch(@client, :connection)
    patch(@server, :connection)
  end

  def play
    !FREE && @random.rand < 0.2 ? upgrade : @client.send_connection_preface
    deliver_all
    (5 + @random.rand(30)).times do
      step
      note_states
    end
    rescued { deliver_all }
    note_states
    @log
  end

  private

  def settings
    given = {}
    given[:settings_max_frame_size] = 20_000 if @random.rand < 0.3
    given[:settings_max_concurrent_streams] = 4 if @random.rand < 0.2
    given.merge(pick([{}, { huffman: :always }, { huffman: :never }, { index: :static }, { index: :never }]))
  end

  def pick(list)
    list[@random.rand(list.size)] unless list.empty?
  end

  def patch(object, kind)
    return unless ENV["PATCHED"] == "1"

    THROUGH.fetch(kind).each do |name|
      object.define_singleton_method(name) { |*args, &block| super(*args, &block) }
    end
  end

  def listen(connection)
    who = @ends[connection]
    connection.on(:frame) do |bytes|
      @wires[connection] << bytes
      @log << [who, "bytes", digest(bytes)]
      nil
    end
    connection.on(:frame_sent) { |frame| note(who, "sent", frame) }
    connection.on(:frame_received) { |frame| note(who, "received", frame) }
    connection.on(:settings_ack) { |_, left| note(who, "settings_ack", left) }
    %i[goaway ack].each { |event| connection.on(event) { |*args| note(who, event, args) } }
    %i[stream promise].each { |event| connection.on(event) { |stream| meet(connection, stream, event) } }
  end

  def meet(connection, stream, event)
    # Once: http-2 1.3.0 emits `:stream` for each block of headers.
    return if @streams[connection].include?(stream)

    who = "#{@ends[connection]}#{stream.id}"
    note(who, event, stream.parent&.id)
    @streams[connection] << stream
    patch(stream, :stream)
    EVENTS.each { |name| stream.on(name) { |*args| note(who, name, args) } }
  end

  def note(who, what, about)
    about = about.sort_by { |key, _| key.to_s }.to_h if about.is_a?(Hash)
    @log << [who, what, digest(about.inspect.b)]
    nil
  end

  def digest(bytes)
    bytes.bytesize > 80 ? "#{bytes.bytesize} #{bytes.sum(32)}" : bytes.inspect
  end

  def note_states
    @ends.each do |connection, who|
      streams = @streams[connection].map do |stream|
        [stream.id, stream.state, stream.closed, stream.local_window, stream.remote_window, stream.buffered_amount, stream.weight]
      end
      @log << [who, connection.state, connection.active_stream_count, connection.local_window, connection.remote_window,
               connection.buffered_amount, streams].inspect
    end
  end

  # Bytes of one end come to the other, as many as happen to.
  def deliver(from)
    wire = @wires[from]
    to = @ends.keys.find { |connection| connection != from }
    to << wire.slice!(0, 1 + @random.rand(wire.bytesize * 2)) unless wire.empty?
  end

  def deliver_all
    deliver(@client) || deliver(@server) until @wires.values.all?(&:empty?)
  end

  def step
    rescued do
      case @random.rand(FREE ? 18 : 17)
      when 0, 1 then request
      when 2, 3 then respond
      when 4, 5 then content(pick(@streams.keys))
      when 6 then trailers
      when 7 then reprioritize
      when 8 then cancel
      when 9 then pick(@ends.keys).ping("12345678")
      when 10 then promise
      when 17 then leave(pick(@ends.keys), pick(%i[no_error protocol_error enhance_your_calm]))
      when 11 then pick(@ends.keys).settings(settings_max_concurrent_streams: 3 + @random.rand(5))
      else 4.times { deliver(pick(@ends.keys)) }
      end
    end
  end

  def leave(connection, error)
    @log << [@ends[connection], :leaves, error]
    connection.goaway(error, pick([nil, "bye"]))
  end

  def rescued
    yield
  rescue HTTP2::Error::Error => e
    @log << [e.class.name, e.message]
  end

  def fields
    Array.new(@random.rand(4)) { |at| ["x-#{pick(%w[a b c])}", pick(["", "value", "v" * 300, "ä#{at}"])] }
  end

  def upgrade
    given = HTTP2::Client.settings_header(settings_max_concurrent_streams: 50)
    meet(@client, @client.upgrade, :new)
    @server.upgrade(given, REQUEST, pick(["", "body"]))
  end

  def request
    stream = @client.new_stream(weight: 1 + @random.rand(256))
    meet(@client, stream, :new)
    stream.reprioritize(weight: 1 + @random.rand(200)) if !FREE && @random.rand < 0.2
    stream.headers(REQUEST + fields, end_stream: @random.rand < 0.3)
  end

  # Streams of an end that may still send content.
  def sending(connection)
    @streams[connection].select { |stream| %i[open half_closed_remote].include?(stream.state) }
  end

  def respond
    stream = pick(sending(@server) - answered) or return
    answered << stream
    stream.headers([[":status", "200"]] + fields, end_stream: @random.rand < 0.2)
  end

  def answered = @answered ||= []

  # The end of a stream comes by itself, as trailers do: a WINDOW_UPDATE for a stream that is closed widens the original's connection.
  def content(connection)
    streams = sending(connection)
    streams &= answered if connection == @server
    stream = pick(streams) or return
    size = pick([0, 1, 70, 16_384, 20_001, 40_000])
    ends = @random.rand < 0.4
    deliver_all if ends
    return unless sending(connection).include?(stream)

    stream.data("x" * size, end_stream: ends && size < 100)
    return unless ends && size > 100

    deliver_all
    stream.data("", end_stream: true)
  end

  def trailers
    deliver_all
    stream = pick(sending(@client)) or return
    stream.headers([%w[x-end yes]], end_stream: true) if stream.send_buffer.empty?
  end

  # Only what is open at both ends: the original opens streams anew that are closed, or that the server had no room for.
  def reprioritize
    deliver_all
    open = @streams.values.map { |streams| streams.reject { |stream| stream.state == :closed } }
    stream = pick(open[0].select { |known| open[1].any? { |other| other.id == known.id } })
    stream&.reprioritize(weight: 1 + @random.rand(200))
    deliver_all
  end

  # Nothing is under way on a stream that is given up: what still comes for it ends the original's connection. Nor is it one that the
  # server had no room for, which the original takes for idle.
  def cancel
    deliver_all
    stream = pick(@streams[pick(@ends.keys)])
    return unless stream && @streams.values.all? { |streams| streams.any? { |known| known.id == stream.id } }

    stream.public_send(pick(%i[cancel refuse close])) unless stream.state == :closed
    deliver_all
  end

  # Only while there is one stream, unless that is asked for: the original compares identifiers of both sides.
  def promise
    deliver_all
    stream = FREE ? pick(sending(@server)) : @streams[@server].last
    return if stream.nil? || stream.id.even? || stream.state == :closed
    return if !FREE && (stream.id != 1 || @streams[@server].size > 1)

    stream.promise(REQUEST) do |push|
      meet(@server, push, :pushing)
      answered << push
      push.headers([[":status", "200"]])
      push.data("pushed")
    end
  end
end

first, count = ARGV.map(&:to_i)
(first...first + count).each do |seed|
  puts JSON.generate([seed, *Exchange.new(seed).play.map(&:inspect)])
rescue StandardError => e
  puts JSON.generate([seed, e.class.name, e.message])
end
