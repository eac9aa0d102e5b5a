# frozen_string_literal: true

require_relative "../support/http_2"

# Connections and streams emit by the method `emit` where a program has its own. The last tests change the classes for good, so this file
# runs by itself, in this order.
class HTTP2EmitTest < HTTP2TestCase
  i_suck_and_my_tests_are_order_dependent!

  # Notes each event.
  module Noting
    SEEN = []

    def emit(event, *)
      SEEN << event
      super
    end
  end

  OF_CONNECTIONS = %i[frame frame_received frame_sent].freeze
  OF_STREAMS = %i[active close data frame half_close headers].freeze

  def setup
    skip "other events" if OLD
    Noting::SEEN.clear
  end

  # The events of a request and its response that were noted.
  def noted(client_class = HTTP2::Client)
    client, server = client_class.new, HTTP2::Server.new
    to_server, to_client = [], []
    client.on(:frame) { |bytes| to_server << bytes }
    server.on(:frame) { |bytes| to_client << bytes }
    server.on(:stream) do |stream|
      stream.on(:half_close) do
        stream.headers(RESPONSE, end_stream: false)
        stream.data("body")
      end
    end
    client.send_connection_preface
    stream = client.new_stream
    yield client, stream
    bodies = []
    stream.on(:data) { |data| bodies << data }
    stream.headers(REQUEST, end_stream: true)
    # Each frame left once.
    assert_equal(1, to_server.count { |bytes| bytes.getbyte(3) == 1 })
    server << to_server.shift until to_server.empty?
    client << to_client.shift until to_client.empty?
    assert_equal ["body"], bodies
    assert_equal :closed, stream.state
    Noting::SEEN.uniq.sort
  end

  def test_0_emitter_with_a_module
    events = in_child do
      HTTP2::Emitter.prepend(Module.new)
      before = noted { nil }
      HTTP2::Emitter.prepend(Noting)
      [before, noted { nil }]
    end
    assert_equal [[], OF_CONNECTIONS, OF_STREAMS], [events[0], events[1] & OF_CONNECTIONS, events[1] & OF_STREAMS]
  end

  def test_0_emitter_with_another_emit
    events = in_child do
      HTTP2::Emitter.module_eval do
        alias_method :emit_before, :emit
        def emit(event, *args, &block)
          Noting::SEEN << event
          emit_before(event, *args, &block)
        end
      end
      noted { nil }
    end
    assert_equal [OF_CONNECTIONS, OF_STREAMS], [events & OF_CONNECTIONS, events & OF_STREAMS]
  end

  def test_1_without_one
    assert_empty(noted { nil })
  end

  def test_2_one_connection
    assert_equal OF_CONNECTIONS, noted { |client, _| client.extend(Noting) } - [:settings_ack]
  end

  def test_3_one_stream
    assert_equal OF_STREAMS, noted { |_, stream| stream.extend(Noting) }
  end

  def test_4_a_subclass
    subclass = Class.new(HTTP2::Client) do
      def emit(event, *)
        Noting::SEEN << event
        super
      end
    end
    assert_equal OF_CONNECTIONS, noted(subclass) { nil } & OF_CONNECTIONS
  end

  def test_5_a_module_that_gets_it_later
    mod = Module.new
    HTTP2::Stream.prepend(mod)
    mod.include(Comparable)
    assert_empty(noted { nil })
    mod.prepend(Noting)
    HTTP2::Stream.prepend(mod)
    assert_equal OF_STREAMS, noted { nil } & OF_STREAMS
  end
end
