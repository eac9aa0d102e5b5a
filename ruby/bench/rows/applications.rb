# frozen_string_literal: true

require "fileutils"
require "rbconfig"
require "socket"
require "stringio"
require "tmpdir"
require_relative "../traffic"

module Bench
  # Programs on the replaced gems, and what their users notice. The other end is a process of its own, whose time does not count.
  module Applications
    # The clients of a server: a process that runs a method of `Clients`, and exchanges lines with this one.
    class Peer
      def initialize(*arguments)
        @pipe = IO.popen([RbConfig.ruby, File.join(__dir__, "../clients.rb"), *arguments.map(&:to_s)], "r+")
        at_exit { Process.kill(:KILL, @pipe.pid) }
      end

      def tell(line)
        @pipe.puts(line)
      end

      def receive
        @pipe.gets&.chomp or raise "the clients failed"
      end
    end

    module_function

    # Serves +app+ by Puma on a free port, which is returned.
    def puma(app)
      require "puma"
      require "puma/server"
      # The second is before Puma 6.
      log = defined?(Puma::LogWriter) ? [nil, { log_writer: Puma::LogWriter.null }] : [Puma::Events.null, {}]
      server = Puma::Server.new(app, log[0], { min_threads: 4, max_threads: 4, **log[1] })
      port = server.add_tcp_listener("127.0.0.1", 0).addr[1]
      server.run
      port
    end

    # Action Cable with a channel whose members receive the broadcasts to "room".
    def action_cable
      %w[logger concurrent action_cable].each { |feature| require feature }
      channel = Class.new(ActionCable::Channel::Base) { def subscribed = stream_from("room") }
      Object.const_set(:RoomChannel, channel)
      config = ActionCable.server.config
      config.cable = { "adapter" => "async" }
      config.connection_class = -> { ActionCable::Connection::Base }
      config.logger = Logger.new(IO::NULL)
      config.disable_request_forgery_protection = true
      puma(ActionCable.server)
    end

    # A WebSocket server on a hijacked socket, which reads the first message of each connection and keeps it.
    class Idle
      Connection = Struct.new(:env, :socket, :driver) do
        def url = "ws://localhost/"
        def write(bytes) = socket.write(bytes)
      end

      def initialize
        @kept = Queue.new
      end

      def size = @kept.size

      def call(env)
        connection = Connection.new(env, env["rack.hijack"].call)
        driver = connection.driver = WebSocket::Driver.rack(connection)
        greeted = false
        driver.on(:message) { |event| greeted = driver.text(event.data) }
        driver.start
        driver.parse(connection.socket.readpartial(4096)) until greeted
        @kept << connection
        [-1, {}, []]
      end
    end

    # A Rack application over HTTP/2 without TLS, served by the middleware of Falcon's server, on a free port.
    def falcon(app)
      %w[async async/http/endpoint async/http/server protocol/rack protocol/http/content_encoding].each { |feature| require feature }
      ports = Queue.new
      Thread.new do
        Async do
          bound = Async::HTTP::Endpoint.parse("http://127.0.0.1:0/", protocol: Async::HTTP::Protocol::HTTP2).bound
          ports << bound.sockets.first.to_io.local_address.ip_port
          served = Protocol::HTTP::ContentEncoding.new(Protocol::Rack::Adapter.new(app))
          Async::HTTP::Server.new(served, bound, protocol: Async::HTTP::Protocol::HTTP2, scheme: "http").run
        end
      end.report_on_exception = true
      ports.pop
    end

    # An HTTP/2 server of another language, without TLS, on a free port.
    def nghttpd
      port = TCPServer.open("127.0.0.1", 0) { |server| server.addr[1] }
      pid = spawn("nghttpd", "--no-tls", "--address=127.0.0.1", port.to_s, %i[out err] => File::NULL)
      at_exit { Process.kill(:KILL, pid) }
      begin
        TCPSocket.open("127.0.0.1", port).close
      rescue Errno::ECONNREFUSED
        sleep 0.05
        retry
      end
      port
    end
  end

  row "ws-driver/cbor", "firehose client that decodes each event (CBOR)",
      gem: "websocket_driver", needs: %w[cbor], per: "message" do |c|
    require "cbor"
    # Made-up events are random bytes.
    events = Traffic.events.first(c.size(150, 2)).map { |event| ENV["FIREHOSE"] ? event : { "t" => "#commit", "blocks" => event }.to_cbor }
    wire = events.map { |event| Traffic.frame(:binary, event) }.join
    chunks = Traffic.chunks(wire, 16_384)
    driver = Drivers.client(binary_data_format: :string)
    seen = 0
    driver.on(:message) do |event|
      # An event is a header and a body, one behind the other.
      CBOR::Unpacker.new(StringIO.new(event.data)).each { seen += 1 }
    end
    once = events.sum { |event| CBOR::Unpacker.new(StringIO.new(event)).each.count }
    lambda do
      seen = 0
      chunks.each { |chunk| driver.parse(chunk) }
      c.check(seen == once, "#{seen} items of #{once}")
      events.size
    end
  end

  row "ws-driver/cable", "Action Cable in Puma, a broadcast of 200 B to 1,000 clients",
      gem: "websocket_driver", needs: %w[actioncable puma], per: "broadcast" do |c|
    count = c.size(1_000, 3)
    clients = Applications::Peer.new("cable", Applications.action_cable, count)
    c.check(clients.receive == "subscribed")
    text = "0123456789" * 20
    lambda do
      ActionCable.server.broadcast("room", text)
      c.check(clients.receive == count.to_s)
      1
    end
  end

  row "ws-driver/idle", "10,000 idle connections on hijacked sockets of Puma, each",
      gem: "websocket_driver", needs: %w[puma], per: "connection", measure: :held do |c|
    app = Applications::Idle.new
    clients = Applications::Peer.new("idle", Applications.puma(app), c.size(10_000, 5))
    lambda do
      before = app.size
      clients.tell("connect")
      count = clients.receive.to_i
      sleep 0.01 until app.size == count
      count - before
    end
  end

  row "http-2/httpx", "httpx, 100 concurrent GETs of 1 KB of nghttpd",
      gem: "http_2", needs: %w[httpx], tool: "nghttpd", per: "request" do |c|
    require "httpx"
    folder = Dir.mktmpdir
    at_exit { FileUtils.rm_rf(folder) }
    File.write(File.join(folder, "1k"), "0123456789abcdef" * 64)
    port = Dir.chdir(folder) { Applications.nghttpd }
    urls = ["http://127.0.0.1:#{port}/1k"] * c.size(100, 3)
    session = HTTPX.plugin(:persistent).with(fallback_protocol: "h2")
    lambda do
      answers = session.get(*urls)
      c.check(answers.all? { |answer| answer.status == 200 && answer.to_s.bytesize == 1024 }, "a request failed: #{answers.first}")
      urls.size
    end
  end

  row "protocol-http2/falcon", "a Rack application as Falcon serves it, h2load with 100 concurrent GETs",
      gem: "protocol_http2", needs: %w[async-http io-event protocol-rack], tool: "h2load", per: "request", bar: 1.5 do |c|
    require "open3"
    ENV["CONSOLE_LEVEL"] ||= "fatal"
    port = Applications.falcon(->(_) { [200, { "content-type" => "text/plain" }, ["Hello World"]] })
    count = c.size(2_000, 20)
    lambda do
      out, = Open3.capture2e("h2load", "--requests=#{count}", "--clients=1", "--max-concurrent-streams=100", "http://127.0.0.1:#{port}/")
      c.check(out.include?(" #{count} 2xx"), out)
      count
    end
  end
end
