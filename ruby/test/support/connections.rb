# frozen_string_literal: true

require "wireloom"

module Wireloom
  module Connections
    module_function

    # A client and a server after their handshake, for long messages.
    def connected(**options)
      client = WebSocket::Client.new("ws://x", max_queued_length: 1 << 30, **options)
      server = WebSocket::Server.new(max_message_length: 1 << 30, max_inflate_ratio: 2000, **options)
      server.receive(client.take_output)
      server.accept
      client.receive(server.take_output)
      [client, server]
    end

    # All events of `bytes`.
    def received(connection, bytes)
      events = connection.receive(bytes)
      events.concat(connection.receive("")) while connection.input?
      events
    end
  end
end
