# frozen_string_literal: true

# Echoes over the drop-in replacement for websocket-driver, for Autobahn.
#
#   ruby_peer.rb server             prints the address on which it listens
#   ruby_peer.rb client URL AGENT   runs every case of a fuzzing server

root = File.expand_path("../../ruby", __dir__)
$LOAD_PATH.unshift("#{root}/lib")
require "socket"
require "uri"
require "wireloom/drop_in/websocket_driver"
require "websocket/driver"
require_relative "../../ruby/test/support/permessage_deflate"

LENGTH_MAX = 64 << 20

# The socket of a driver, which calls `url` and `write`.
class Connection
  attr_reader :url

  def initialize(socket, url = nil)
    @socket = socket
    @url = url
  end

  def write(bytes)
    @socket.write(bytes)
  rescue SystemCallError, IOError
    nil # the peer has ended the case
  end

  # Reads until the end of the connection, and closes the socket then.
  def run(driver, &on_message)
    driver.add_extension(PermessageDeflate)
    driver.on(:message) { |event| on_message.call(event.data) }
    driver.on(:close) { @socket.close_write unless @socket.closed? }
    start(driver)
    loop { driver.parse(@socket.readpartial(1 << 16)) }
  rescue SystemCallError, IOError
    nil
  ensure
    @socket.close
  end

  private

  def start(driver)
    if @url
      driver.start
    else
      driver.on(:connect) { driver.start }
    end
  end
end

# A message as it came: text is in UTF-8, binary in BINARY.
def echo(driver, data)
  data.encoding == Encoding::BINARY ? driver.binary(data) : driver.text(data)
end

def serve
  listener = TCPServer.new("127.0.0.1", 0)
  puts "listening on 127.0.0.1:#{listener.addr[1]}"
  $stdout.flush
  loop do
    Thread.new(listener.accept) do |socket|
      connection = Connection.new(socket)
      driver = WebSocket::Driver.server(connection, max_length: LENGTH_MAX)
      connection.run(driver) { |data| echo(driver, data) }
    end
  end
end

def connect(url, &on_message)
  address = URI(url)
  connection = Connection.new(TCPSocket.new(address.host, address.port), url)
  driver = WebSocket::Driver.client(connection, max_length: LENGTH_MAX)
  connection.run(driver) { |data| on_message.call(driver, data) }
end

def run_all(base, agent)
  count = 0
  connect("#{base}/getCaseCount") { |_, data| count = Integer(data) }
  (1..count).each do |number|
    $stderr.print "\rcase #{number} of #{count}"
    connect("#{base}/runCase?case=#{number}&agent=#{agent}") { |driver, data| echo(driver, data) }
  end
  warn
  connect("#{base}/updateReports?agent=#{agent}") { nil }
end

case ARGV
in ["server"] then serve
in ["client", base, agent] then run_all(base, agent)
end
