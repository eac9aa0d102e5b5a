# frozen_string_literal: true

# A server for the tests of applications, in a process of its own: `ruby http_2_peer.rb`. With ORIGINAL=1 it uses the original, else the
# drop-in. It prints two ports, of TLS with ALPN and of plain TCP, and ends when its input does.
$LOAD_PATH.unshift(File.expand_path("../../lib", __dir__))
require(ENV["ORIGINAL"] == "1" ? "http/2" : "wireloom/drop_in/http_2")
require "openssl"
require "socket"

# The answers by path.
class HTTP2Peer
  # One connection: bytes to events and back.
  class Session
    def initialize(io, counter)
      @io = io
      @number = counter
      @requests = 0
      @server = HTTP2::Server.new(settings_max_concurrent_streams: 50)
      @server.on(:frame) { |bytes| @held ? @held << bytes : @io.write(bytes) }
      # Once each: http-2 1.3.0 emits a stream again when trailers come.
      streams = {}
      @server.on(:stream) { |stream| streams[stream.id] ||= take(stream) || true }
      @server.on(:ack) { |payload| @ponged = payload }
    end

    def run
      first = @io.readpartial(16_384)
      first = upgrade(first) unless first.start_with?("PRI")
      return unless first

      @server << first
      loop { @server << @io.readpartial(16_384) }
    rescue EOFError, SystemCallError, IOError, OpenSSL::SSL::SSLError, HTTP2::Error::Error
      nil
    ensure
      @io.close
    end

    # RFC 7540 §3.2, or HTTP/1.1 as it is.
    def upgrade(head)
      head << @io.readpartial(16_384) until head.include?("\r\n\r\n")
      settings = head[/^http2-settings: *(\S+)/i, 1]
      unless settings
        @io.write("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n1.1")
        return
      end
      # In one piece: httpx wants something to read behind the head.
      @held = +"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
      path = head[/\A\S+ (\S+)/, 1]
      request = { ":method" => head[/\A\S+/], ":scheme" => "http", ":authority" => "localhost", ":path" => path }
      @server.upgrade(settings, request.to_a, "")
      @io.write(@held)
      @held = nil
      head.split("\r\n\r\n", 2).last
    end

    private

    def take(stream)
      request = nil
      trailers = nil
      body = "".b
      stream.on(:headers) do |headers|
        request ? trailers = headers : request = headers.to_h
        answer_early(stream, request)
      end
      stream.on(:data) { |data| body << data }
      stream.on(:half_close) { answer(stream, request, body, trailers) }
    end

    def answer_early(stream, request)
      return converse(stream) if request[":path"] == "/converse"
      return unless request[":path"].start_with?("/live")

      stream.headers([[":status", "200"]], end_stream: false)
      stream.on(:data) { |data| stream.data(data.upcase, end_stream: false) unless data.empty? }
    end

    # Events as the AWS SDK signs them: each holds another one, which goes back; an empty one is the last.
    def converse(stream)
      stream.headers([[":status", "200"], %w[content-type application/vnd.amazon.eventstream]])
      waiting = "".b
      stream.on(:data) do |data|
        waiting << data
        while waiting.bytesize >= 12 && waiting.bytesize >= (whole = waiting.unpack1("N"))
          message = waiting.slice!(0, whole)
          event = message.byteslice((12 + message.unpack("NN").last)...-4)
          stream.data(event, end_stream: event.empty?)
        end
      end
    end

    def answer(stream, request, body, trailers)
      @requests += 1
      path, number = request[":path"][1..].split("?")
      answer = "answer_#{path}"
      return __send__(answer, stream, number.to_i, request, body, trailers) if respond_to?(answer, true)

      respond(stream, "#{request[":method"]} #{request[":path"]} #{request["x-more"]}".strip)
    end

    def respond(stream, body, status: 200, headers: [])
      stream.headers([[":status", status.to_s], ["content-length", body.bytesize.to_s], *headers],
                     end_stream: body.empty?)
      stream.data(body) unless body.empty?
    end

    def answer_echo(stream, _, _, body, trailers)
      respond(stream, body, headers: (trailers || []).map { |name, value| ["was-#{name}", value] })
    end

    def answer_size(stream, _, _, body, _) = respond(stream, "#{body.bytesize} #{body.sum}")
    def answer_bytes(stream, size, *) = respond(stream, "b" * size)
    def answer_connection(stream, *) = respond(stream, @number.to_s)
    def answer_never(*) = nil
    def answer_reset(stream, *) = stream.close(:cancel)
    def answer_refuse(stream, *) = @requests == 1 && @number == 1 ? stream.refuse : respond(stream, "not refused")
    def answer_converse(*) = nil
    def answer_json(stream, *) = respond(stream, '{"text":"from afar"}', headers: [%w[content-type application/json]])
    def answer_live(stream, *) = stream.data("", end_stream: true)

    def answer_trailers(stream, *)
      stream.headers([[":status", "200"], %w[trailer x-sum]])
      stream.data("with trailers", end_stream: false)
      stream.headers([%w[x-sum 42]], end_stream: true)
    end

    def answer_parts(stream, count, *)
      stream.headers([[":status", "200"], %w[content-type text/plain]])
      count.times { |at| stream.data("part #{at}\n", end_stream: false) }
      stream.data("", end_stream: true)
    end

    # The first connection says that it will end after this answer.
    def answer_goaway(stream, *)
      if @number == 1
        id = stream.id
        @server.__send__(:send, type: :goaway, stream: 0, last_stream: id, error: :no_error, payload: "bye")
      end
      respond(stream, "after goaway on #{@number}")
    end

    def answer_ping(stream, *)
      @server.ping("12345678") { |payload| respond(stream, "pong #{payload}") }
    end

    def answer_push(stream, _, request, *)
      headers = { ":method" => "GET", ":scheme" => request[":scheme"], ":authority" => request[":authority"],
                  ":path" => "/pushed" }
      pushed = nil
      stream.promise(headers) do |push|
        push.headers([[":status", "200"], %w[x-pushed yes]])
        pushed = push
      end
      respond(stream, "page")
      pushed.data("was pushed")
    end

    def answer_window(stream, *)
      stream.headers([[":status", "200"]])
      stream.data("w" * 300_000)
    end
  end

  def initialize
    @connections = 0
    @plain = TCPServer.new("127.0.0.1", 0)
    @tls = OpenSSL::SSL::SSLServer.new(TCPServer.new("127.0.0.1", 0), tls)
  end

  def run
    [[@plain, :accept], [@tls, :accept]].each do |server, accept|
      Thread.new do
        loop { serve(server.public_send(accept)) }
      end
    end
    $stdout.puts("#{@tls.to_io.local_address.ip_port} #{@plain.local_address.ip_port}")
    $stdout.flush
    $stdin.read
  end

  private

  def serve(io)
    io.to_io.setsockopt(:TCP, :NODELAY, 1)
    number = @connections += 1
    Thread.new { Session.new(io, number).run }
  end

  def tls
    key = OpenSSL::PKey::EC.generate("prime256v1")
    name = OpenSSL::X509::Name.parse("/CN=localhost")
    certificate = OpenSSL::X509::Certificate.new
    certificate.version = 2
    certificate.serial = 1
    certificate.subject = certificate.issuer = name
    certificate.public_key = key
    certificate.not_before = Time.now - 3600
    certificate.not_after = Time.now + 3600
    certificate.sign(key, "SHA256")
    OpenSSL::SSL::SSLContext.new.tap do |context|
      context.cert = certificate
      context.key = key
      context.alpn_select_cb = ->(offered) { (%w[h2 http/1.1] & offered).first }
    end
  end
end

HTTP2Peer.new.run
