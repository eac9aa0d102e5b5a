# frozen_string_literal: true

require_relative "test_helper"
require "open3"
require "openssl"
require "rbconfig"
require "socket"
require "stringio"
require "timeout"
require "tmpdir"
require "wireloom"

# Runs every block of Ruby in the guides, as a program of its own, against a peer in this process. Hosts and ports are replaced.
class GuidesTest < Wireloom::TestCase
  ROOT = File.expand_path("..", __dir__)
  TESTED = { "bundler" => 2, "chat" => 2, "concurrency" => 1, "firehose" => 4, "http2" => 4, "troubleshooting" => 0, "web_socket" => 2 }.freeze
  SECONDS = 30
  RESERVED = "\xF1\x00".b.freeze # a frame with reserved bits
  # The command is called after the version of Ruby on Debian.
  BUNDLE = [RbConfig.ruby, "-e", 'load Gem.bin_path("bundler", "bundle")'].freeze

  def blocks(guide)
    File.read(File.join(ROOT, "guides/#{guide}.md")).scan(/^ *```ruby\n(.*?)^ *```$/m).flatten
  end

  def setup
    @pids = []
    @sockets = []
    @listener = TCPServer.new("127.0.0.1", 0)
    @port = @listener.addr[1]
  end

  def teardown
    @pids.each do |pid|
      Process.kill(:KILL, pid)
      Process.wait(pid)
    rescue SystemCallError
      nil
    end
    [*@sockets, @listener].each { |socket| socket.close unless socket.closed? }
  end

  # Runs a program to its end; returns its output.
  def run_program(program)
    out, status = finish_program(program)
    assert status.success?, out
    out
  end

  # The output of a program, and how it ended.
  def finish_program(program)
    Timeout.timeout(SECONDS) do
      Open3.popen2e(RbConfig.ruby, "-W0", "-I#{ROOT}/lib", "-e", program) do |stdin, output, thread|
        @pids << thread.pid
        stdin.close
        [output.read, thread.value]
      end
    end
  end

  # The same with times that a test can wait for.
  def finish_soon(program)
    finish_program(program.gsub(/\|\| \d+\)/, "|| 0.2)").gsub("ping_after: 20, dead_after: 60", "ping_after: 0.1, dead_after: 0.2"))
  end

  # Starts a program that prints a port; returns the port.
  def start_program(program)
    reader, writer = IO.pipe
    @pids << Process.spawn(RbConfig.ruby, "-W0", "-I#{ROOT}/lib", "-e", program, out: writer, err: writer)
    writer.close
    said = Timeout.timeout(SECONDS) { reader.gets }
    @sockets << reader
    Integer(said)
  rescue ArgumentError, TypeError
    flunk "#{said}#{reader.read}"
  end

  # A thread that serves one connection.
  def serve(tls: false)
    Thread.new do
      socket = tls ? tls_server.accept : @listener.accept
      @sockets << socket
      yield socket
    ensure
      socket&.close
    end
  end

  def tls_server
    key = OpenSSL::PKey::RSA.new(2048)
    certificate = OpenSSL::X509::Certificate.new
    certificate.version = 2
    certificate.serial = 1
    certificate.subject = certificate.issuer = OpenSSL::X509::Name.parse("/CN=localhost")
    certificate.public_key = key.public_key
    certificate.not_before = Time.now - 60
    certificate.not_after = Time.now + 3600
    certificate.sign(key, OpenSSL::Digest.new("SHA256"))
    context = OpenSSL::SSL::SSLContext.new
    context.add_certificate(certificate, key)
    OpenSSL::SSL::SSLServer.new(@listener, context)
  end

  # Sends events to the client that connects, and closes.
  def serve_events(socket, events)
    server = Wireloom::WebSocket::Server.new
    until server.closed?
      server.receive(socket.readpartial(4096)).grep(Wireloom::WebSocket::Request).each do
        server.accept
        events.each { |event| server.binary(event) }
        server.close
      end
      socket.write(server.take_output)
    end
  rescue EOFError, SystemCallError, OpenSSL::SSL::SSLError
    nil
  end

  def installed?(*gems)
    missing = gems.filter_map { |gem| missing(gem) }.first
    missing ? limited("the gem #{missing} is not installed for this Ruby") : true
  end

  # The gem, or one that it depends on, if it is not there: a distribution may have an extension for another Ruby only.
  def missing(name, requirement = Gem::Requirement.default, seen = [])
    return if seen.include?(name)

    seen << name
    spec = Gem::Specification.find_all_by_name(name, requirement).max_by(&:version) or return name
    spec.runtime_dependencies.filter_map { |dependency| missing(dependency.name, dependency.requirement, seen) }.first
  end

  def test_every_block_is_tested
    counts = Dir[File.join(ROOT, "guides/*.md")].sort.to_h { |path| [File.basename(path, ".md"), blocks(File.basename(path, ".md")).size] }
    assert_equal TESTED, counts
  end

  def test_a_web_socket_client_and_server
    client, server = blocks("web_socket")
    setup_code, *receive = server.lines
    thread = serve do |socket|
      place = binding
      place.local_variable_set(:bytes, nil)
      place.eval(setup_code)
      loop do
        place.local_variable_set(:bytes, socket.readpartial(4096))
        place.eval(receive.join)
        ws = place.local_variable_get(:ws)
        socket.write(ws.take_output)
        break if ws.closed?
      end
    end
    out = run_program(client.gsub("8080/echo", "#{@port}/chat").gsub("8080", @port.to_s))
    thread.join
    assert_equal "Hello\n", out
  end

  # Each end waits for the other after a broken rule, unless one shuts its side down.
  def test_a_web_socket_client_of_a_server_that_breaks_a_rule
    code = nil
    thread = serve do |socket|
      server = Wireloom::WebSocket::Server.new
      server.receive(socket.readpartial(4096))
      server.accept
      socket.write(server.take_output)
      assert_equal ["Hello"], server.receive(socket.readpartial(4096))
      socket.write(RESERVED)
      code = wait_for_close(server, socket)
      assert_nil Timeout.timeout(SECONDS) { socket.read(1) }
    end
    assert_empty run_program(blocks("web_socket").first.gsub("8080", @port.to_s))
    thread.join
    assert_equal 1002, code
  end

  # The code of the Close frame that follows.
  def wait_for_close(connection, socket)
    events = []
    Timeout.timeout(SECONDS) do
      events = connection.receive(socket.readpartial(4096)) until events.any?(Wireloom::WebSocket::Close)
    end
    events.grep(Wireloom::WebSocket::Close).first.code
  end

  # The events of a chunk are handled when all of it was received: messages cannot be sent any more.
  def test_a_web_socket_client_of_a_server_that_closes_at_once
    thread = serve { |socket| serve_events(socket, ["Hello"]) }
    assert_equal "Hello\n", run_program(blocks("web_socket").first.gsub("8080", @port.to_s))
    thread.join
  end

  def test_a_web_socket_server_of_a_client_that_closes_at_once
    client = Wireloom::WebSocket::Client.new("ws://localhost/chat")
    place = binding
    setup_code, *receive = blocks("web_socket").last.lines
    place.local_variable_set(:bytes, client.take_output)
    place.eval(setup_code + receive.join)
    client.receive(place.local_variable_get(:ws).take_output)
    client.text("Hello")
    client.close
    place.local_variable_set(:bytes, client.take_output)
    place.eval(receive.join)
    refute place.local_variable_get(:ws).open?
  end

  def test_an_http2_server_of_a_client_that_resets_at_once
    client = Wireloom::HTTP2::Client.new
    stream = client.request([[":method", "GET"], [":scheme", "http"], [":authority", "localhost"], [":path", "/"]], end_stream: true)
    bytes = client.take_output
    client.reset(stream)
    bytes += client.take_output
    socket = StringIO.new("".b)
    eval(blocks("http2").fetch(1), binding)
    refute_empty socket.string
  end

  # The bytes of a peer until the connection ends, in any way.
  def read_all(socket)
    bytes = "".b
    loop { bytes << socket.readpartial(4096) }
  rescue EOFError, SystemCallError, OpenSSL::SSL::SSLError
    bytes
  end

  # The clients, as they are for this peer.
  def web_socket_clients
    { "web_socket" => [blocks("web_socket").first.gsub("8080", @port.to_s), false],
      "firehose over TLS" => [firehose_over_tls, true] }
  end

  def firehose_over_tls
    program = blocks("firehose").fetch(1).gsub("wss://bsky.network", "wss://localhost").gsub('"bsky.network", 443', "\"127.0.0.1\", #{@port}")
                                .gsub('"bsky.network"', '"localhost"')
    refute_includes program, "bsky.network\""
    "def handle(data) = puts(data.bytesize)\n#{program}"
  end

  # Neither an answer nor an end.
  def test_clients_of_a_server_that_does_not_answer
    web_socket_clients.each do |name, (program, tls)|
      thread = serve(tls: tls) { |socket| read_all(socket) }
      out, status = finish_soon(program)
      assert_equal ["no answer to the handshake\n", 1], [out, status.exitstatus], name
      thread.join
    end
  end

  # Pings are left unanswered.
  def test_clients_of_a_server_that_falls_silent
    web_socket_clients.each do |name, (program, tls)|
      received = nil
      thread = serve(tls: tls) do |socket|
        server = Wireloom::WebSocket::Server.new
        server.receive(socket.readpartial(4096))
        server.accept
        socket.write(server.take_output)
        received = server.receive(read_all(socket))
      end
      out, status = finish_soon(program)
      assert_equal ["", 0], [out, status.exitstatus], name
      thread.join
      assert_includes received.map(&:class), Wireloom::WebSocket::Ping, name
    end
  end

  def test_an_http2_client_of_a_server_that_does_not_answer
    thread = serve do |socket|
      server = Wireloom::HTTP2::Server.new
      until server.receive(socket.readpartial(4096)).any?(Wireloom::HTTP2::Request)
        socket.write(server.take_output)
      end
      socket.write(server.take_output)
      read_all(socket)
    end
    out, status = finish_soon(blocks("http2").first.gsub("8080", @port.to_s))
    assert_equal ["no answer\n", 1], [out, status.exitstatus]
    thread.join
  end

  def test_http2_client_and_server
    client, server, hpack, = blocks("http2")
    thread = serve do |socket|
      bytes = socket.readpartial(4096)
      bytes << socket.readpartial(4096) until bytes.bytesize > 60
      eval(server, binding)
      socket.read
    end
    assert_equal "200\ntext/plain\nhello", run_program(client.gsub("8080", @port.to_s))
    thread.join
    assert_equal %([[":method", "GET"], ["x-trace", "1f2e"]]\n), run_program(%(require "wireloom"\np(begin\n#{hpack}end)))
  end

  def test_httpx_with_the_replacement
    installed?("httpx")
    drop_in = blocks("http2").fetch(3)
    assert_equal "true\n", run_program("#{drop_in}\nputs HTTP2::Client.instance_method(:initialize).source_location[0].include?('wireloom')")
  end

  def test_sending_behind_a_lock
    out = run_program(<<~RUBY)
      require "stringio"
      require "wireloom"
      #{blocks("concurrency").fetch(0)}
      client = Wireloom::WebSocket::Client.new("ws://x")
      server = Wireloom::WebSocket::Server.new
      server.receive(client.take_output)
      server.accept
      client.receive(server.take_output)
      socket = StringIO.new
      Array.new(4) { |at| Thread.new { 5.times { send_text(lock, client, socket, "message \#{at}") } } }.each(&:join)
      puts server.receive(socket.string).size
    RUBY
    assert_equal "20\n", out
  end

  def test_firehose_with_faye_websocket
    installed?("faye-websocket", "eventmachine")
    newest = Gem::Specification.find_all_by_name("faye-websocket").map(&:version).max
    limited "faye-websocket before 0.12 has no binary_data_format" if newest < Gem::Version.new("0.12")
    program = blocks("firehose").fetch(0).sub(%r{wss://[^"]+}, "ws://127.0.0.1:#{@port}/")
    serve { |socket| serve_events(socket, ["a" * 5000, "b"]) }
    out = run_program("def handle(data) = puts(data.bytesize)\n#{program.sub(/^  socket\.on\(:close\) \{ \|event\|/, "\\0 EM.stop;")}")
    assert_equal ["5000\n", "1\n"], out.lines.first(2)
  end

  def test_firehose_over_tls
    thread = serve(tls: true) { |socket| serve_events(socket, ["a" * 5000, "b"]) }
    assert_equal "5000\n1\n", run_program(firehose_over_tls)
    thread.join
  end

  # The publisher of the guide compresses what its consumer reads; any bytes are a dictionary.
  def test_firehose_with_a_zstd_dictionary
    zstd?
    dictionary = (0..255).to_a.pack("C*") * 4
    compress = "frame = Zstd::Compressor.new($stdin.read).call('x' * 5000 + 'é'); $stdout.binmode.write(frame)"
    frame, status = Open3.capture2(RbConfig.ruby, "-W0", "-I#{ROOT}/lib", "-e", "#{blocks("firehose").fetch(3)}\n#{compress}",
                                   stdin_data: dictionary, binmode: true)
    assert status.success?
    assert_operator frame.bytesize, :<, 200
    thread = Thread.new do
      socket = @listener.accept
      assert_includes socket.gets, "/dictionary"
      socket.write("HTTP/1.1 200 OK\r\nContent-Length: #{dictionary.bytesize}\r\nConnection: close\r\n\r\n#{dictionary}")
      socket.close
      serve { |other| serve_events(other, [frame]) }.join
    end
    program = blocks("firehose").fetch(2).gsub("8080", @port.to_s)
    assert_equal "5001 UTF-8\n", run_program("def handle(event) = puts(\"\#{event.size} \#{event.encoding}\")\n#{program}")
    thread.join
  end

  def zstd?
    require "fiddle"
    Fiddle.dlopen("libzstd.so.1")
  rescue LoadError, Fiddle::DLError
    lacks "libzstd.so.1 is not installed: Debian's libzstd1"
  end

  # Clients of a chat server.
  def chat(port, count)
    Array.new(count) do
      socket = TCPSocket.new("127.0.0.1", port)
      @sockets << socket
      client = Wireloom::WebSocket::Client.new("ws://127.0.0.1:#{port}/", subprotocols: ["chat"])
      socket.write(client.take_output)
      events = []
      events.concat(client.receive(socket.readpartial(4096))) until client.open?
      [client, socket]
    end
  end

  # The next messages that a client gets.
  def messages(client, socket, count)
    found = []
    Timeout.timeout(SECONDS) { found.concat(client.receive(socket.readpartial(4096)).grep(String)) until found.size >= count }
    found
  end

  def wait_for_pong(client, socket)
    client.ping("")
    socket.write(client.take_output)
    events = []
    Timeout.timeout(SECONDS) { events.concat(client.receive(socket.readpartial(4096))) until events.any?(Wireloom::WebSocket::Pong) }
  end

  def assert_relays(port)
    people = chat(port, 3)
    # Each is in the room once it has got a message.
    first, socket = people.first
    Timeout.timeout(SECONDS) do
      people.drop(1).each do |client, other|
        until other.wait_readable(0.05)
          first.text("hello")
          socket.write(first.take_output)
        end
        client.receive(other.readpartial(4096))
      end
    end
    first.text("the last")
    socket.write(first.take_output)
    people.drop(1).each do |client, other|
      found = []
      Timeout.timeout(SECONDS) { found.concat(messages(client, other, 1)) until found.last == "the last" }
      assert_equal ["hello", "the last"], ["hello", *found].uniq
    end
    refute socket.wait_readable(0.05), "the sender gets nothing back"
    assert_relays_past_clients_that_left(port, first, socket, *people[1])
  end

  # One that vanished and one that is closing end no other connection.
  def assert_relays_past_clients_that_left(port, sender, socket, client, other)
    (_, vanished), (closing, silent) = chat(port, 2)
    vanished.setsockopt(Socket::SOL_SOCKET, Socket::SO_LINGER, [1, 0].pack("ii"))
    vanished.close
    @sockets.delete(vanished)
    closing.close
    silent.write(closing.take_output)
    5.times do |at|
      sender.text("past #{at}")
      socket.write(sender.take_output)
      assert_equal ["past #{at}"], messages(client, other, 1)
    end
  end

  # A client that breaks a rule, and still sends, gets the reason and the end.
  def assert_ends_a_client_that_breaks_a_rule(port)
    (client, socket), = chat(port, 1)
    socket.write(RESERVED, "\0" * (1 << 20))
    assert_equal 1002, wait_for_close(client, socket)
    assert_nil Timeout.timeout(SECONDS) { socket.read(1) }
  end

  # A client sends more behind its Close frame, and reads then what another one has sent to it.
  def assert_loses_nothing_before_a_close_frame(port)
    (client, socket), (other, sender) = chat(port, 2)
    wait_for_pong(client, socket) # it is in the room
    60.times { other.binary("x" * 4096) }
    wait_for_pong(other, sender)
    client.close
    socket.write(client.take_output + ("x" * (256 << 10)))
    received = Timeout.timeout(SECONDS) { socket.read }
    assert_equal 60, client.receive(received).grep(String).size
    assert client.clean?
  end

  # The same, later: while the server has more for it than it has room for.
  def assert_loses_nothing_behind_a_close_frame(port)
    (client, socket), (other, sender) = chat(port, 2)
    wait_for_pong(client, socket)
    60.times { other.binary("x" * 4096) }
    wait_for_pong(other, sender)
    client.close
    socket.write(client.take_output)
    # A server that closes its socket has done so by then.
    sleep 0.5
    socket.write("x" * 4096)
    received = Timeout.timeout(SECONDS) { socket.read }
    assert_equal 60, client.receive(received).grep(String).size
    assert client.clean?
  end

  def test_chat_with_puma
    installed?("puma", "rack")
    port = start_program(<<~RUBY)
      require "puma"
      require "puma/server"
      require "rack"
      app = Rack::Builder.new_from_string(#{blocks("chat").fetch(1).dump})
      server =
        if Puma::Events.respond_to?(:null) then Puma::Server.new(app, Puma::Events.null)
        else Puma::Server.new(app, nil, log_writer: Puma::LogWriter.null)
        end
      port = server.add_tcp_listener("127.0.0.1", 0).addr[1]
      server.run
      $stdout.puts(port)
      $stdout.flush
      sleep
    RUBY
    assert_relays(port)
    assert_ends_a_client_that_breaks_a_rule(port)
    assert_loses_nothing_before_a_close_frame(port)
    assert_loses_nothing_behind_a_close_frame(port)
  end

  def test_chat_with_async
    installed?("async-websocket", "async-http")
    port = TCPServer.open("127.0.0.1", 0) { |server| server.addr[1] }
    program = blocks("chat").fetch(0).sub("9292", port.to_s)
    @pids << Process.spawn(RbConfig.ruby, "-W0", "-I#{ROOT}/lib", "-e", program)
    Timeout.timeout(SECONDS) do
      TCPSocket.new("127.0.0.1", port).close
    rescue Errno::ECONNREFUSED
      sleep 0.05
      retry
    end
    assert_relays(port)
  end

  def test_replacing_a_gem_in_a_bundler_project
    installed?("bundler", "websocket-driver", "faye-websocket")
    gemfile, several = blocks("bundler")
    check = File.read(File.join(ROOT, "guides/bundler.md"))[/bundle exec ruby -e '(.*)'/, 1]
    Dir.mktmpdir do |folder|
      own = %(gem "wireloom", path: #{ROOT.dump}, require: )
      path = File.join(folder, "Gemfile")
      File.write(path, gemfile.gsub('gem "wireloom", require: ', own))
      env = { "BUNDLE_GEMFILE" => path, "RUBYOPT" => nil, "BUNDLE_PATH" => nil, "BUNDLE_FROZEN" => nil }
      out, status = Open3.capture2e(env, *BUNDLE, "install", "--local", chdir: folder)
      limited "bundler cannot resolve the installed gems: #{out.lines.last}" unless status.success?
      assert_includes File.read("#{path}.lock"), "websocket-driver"
      out, status = Open3.capture2e(env, *BUNDLE, "exec", RbConfig.ruby, "-W0", "-e", check, chdir: folder)
      assert status.success?, out
      assert_includes out, "wireloom/drop_in/websocket_driver"
      File.write(path, several.gsub('gem "wireloom", require: ', own))
      File.delete("#{path}.lock")
      script = "Bundler.require; p [WebSocket::Driver, Protocol::WebSocket, HTTP2].size"
      out, status = Open3.capture2e(env, *BUNDLE, "exec", RbConfig.ruby, "-W0", "-e", script, chdir: folder)
      assert status.success?, out
      assert_equal "3\n", out
    end
  end
end
