# frozen_string_literal: true

module Wireloom
  # Puma in the process of a test.
  module QuietPuma
    # Serves +app+ on a free port, which is returned, until the tests have run. Nothing is logged.
    def self.serve(app)
      server =
        if Puma::Events.respond_to?(:null) # before Puma 6
          Puma::Server.new(app, Puma::Events.null)
        else
          Puma::Server.new(app, nil, log_writer: Puma::LogWriter.null)
        end
      port = server.add_tcp_listener("127.0.0.1", 0).addr[1]
      server.run
      Minitest.after_run { server.stop(true) }
      port
    end
  end
end
