# frozen_string_literal: true

require_relative "../support/http_2"

# The same tests when someone has put methods of his own before those that frames go through: nothing is native any more
# between a frame and its listeners.
unless ORIGINAL
  through = Module.new do
    def send(frame)
      super
    end
  end
  HTTP2::Stream.prepend(through)
  HTTP2::Client.prepend(through)
  require_relative "http_2_connection_test"
  require_relative "http_2_stream_test"
end
