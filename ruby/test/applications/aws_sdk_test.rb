# frozen_string_literal: true

require_relative "../test_helper"
original_or_drop_in "http_2", "http/2"
require_needed "aws-sdk-core", "aws-eventstream", "aws-sdk-core/plugins/protocols/rest_json", "timeout"
require_relative "../support/http_2_peers"

# A service as the AWS SDK describes those that converse in events.
module Conversing
  include Seahorse::Model
  Shapes = Seahorse::Model::Shapes

  module Types
    TextEvent = Struct.new(:text, :event_type)
    BytesEvent = Struct.new(:name, :bytes, :event_type)
    Request = Struct.new(:events)
    Response = Struct.new(:events, :text)
    Events = Class.new(Enumerator)
  end

  # Event streams of a program: it signals input events and listens to output events.
  module EventStreams
    class Events
      attr_reader :event_emitter

      def initialize
        @event_emitter = Aws::EventEmitter.new
      end

      def on(type, &block)
        @event_emitter.on(type, block)
      end

      def signal(type, **params)
        @event_emitter.emit(type, params)
      end
    end
  end

  # Shapes and operations.
  module ClientApi
    text = Shapes::StringShape.new(name: "Text")
    blob = Shapes::BlobShape.new(name: "Blob")
    text_event = Shapes::StructureShape.new(name: "TextEvent")
    text_event.add_member(:text, Shapes::ShapeRef.new(shape: text, location_name: "text"))
    text_event.struct_class = Types::TextEvent
    bytes_event = Shapes::StructureShape.new(name: "BytesEvent")
    bytes_event.add_member(:bytes, Shapes::ShapeRef.new(shape: blob, eventpayload: true, eventpayload_type: "blob",
                                                        location_name: "bytes"))
    bytes_event.struct_class = Types::BytesEvent
    events = Shapes::StructureShape.new(name: "Events")
    events.add_member(:text_event, Shapes::ShapeRef.new(shape: text_event, event: true, location_name: "TextEvent"))
    events.add_member(:bytes_event, Shapes::ShapeRef.new(shape: bytes_event, event: true, location_name: "BytesEvent"))
    events.struct_class = Types::Events
    both = lambda do |name, struct|
      shape = Shapes::StructureShape.new(name: name)
      shape.add_member(:events, Shapes::ShapeRef.new(shape: events, eventstream: true, location_name: "events"))
      shape.struct_class = struct
      shape[:payload] = :events
      shape[:payload_member] = shape.member(:events)
      shape
    end
    request = both.call("Request", Types::Request)
    response = both.call("Response", Types::Response)
    nothing = Shapes::StructureShape.new(name: "Nothing")
    nothing.struct_class = Struct.new(:nothing)
    API = Seahorse::Model::Api.new.tap do |api|
      api.version = "2026-01-01"
      api.metadata = { "apiVersion" => "2026-01-01", "endpointPrefix" => "conversing", "protocol" => "rest-json",
                       "protocolSettings" => { "h2" => "eventstream" }, "serviceFullName" => "Conversing",
                       "serviceId" => "Conversing", "signatureVersion" => "v4", "signingName" => "conversing" }
      [["converse", request, response, "POST"], ["json", nothing, text_event, "GET"],
       ["never", nothing, text_event, "GET"], ["reset", nothing, text_event, "GET"]].each do |name, input, output, verb|
        api.add_operation(name.to_sym, Seahorse::Model::Operation.new.tap do |operation|
          operation.name = name.capitalize
          operation.http_method = verb
          operation.http_request_uri = "/#{name}"
          operation.input = Shapes::ShapeRef.new(shape: input)
          operation.output = Shapes::ShapeRef.new(shape: output)
          operation.async = true
        end)
      end
    end
  end

  class AsyncClient < Seahorse::Client::AsyncBase
    include Aws::AsyncClientStubs

    class << self
      attr_reader :identifier
    end

    @identifier = :conversing
    set_api(ClientApi::API)
    [Aws::Plugins::CredentialsConfiguration, Aws::Plugins::Logging, Aws::Plugins::ParamConverter,
     Aws::Plugins::ParamValidator, Aws::Plugins::UserAgent, Aws::Plugins::HelpfulSocketErrors, Aws::Plugins::RetryErrors,
     Aws::Plugins::GlobalConfiguration, Aws::Plugins::Telemetry, Aws::Plugins::RegionalEndpoint, Aws::Plugins::StubResponses,
     Aws::Plugins::InvocationId, Aws::Plugins::SignatureV4, Aws::Plugins::EventStreamConfiguration,
     Aws::Plugins::Protocols::RestJson].each { |plugin| add_plugin(plugin) }

    # These two as the SDK's generator writes them.
    def build_request(name, params = {})
      context = Seahorse::Client::RequestContext.new(
        operation_name: name, operation: config.api.operation(name), client: self, params: params, config: config,
        http_response: Seahorse::Client::Http::AsyncResponse.new,
        tracer: config.telemetry_provider.tracer_provider.tracer("conversing")
      )
      Seahorse::Client::Request.new(handlers.for(name), context)
    end

    def converse(input, output)
      request = build_request(:converse, {})
      request.context[:input_event_stream_handler] = input
      request.handlers.add(Aws::Binary::EncodeHandler, priority: 55)
      request.context[:output_event_stream_handler] = output
      request.handlers.add(Aws::Binary::DecodeHandler, priority: 55)
      request.send_request({})
    end

    %i[json never reset].each { |name| define_method(name) { build_request(name, {}).send_request({}) } }
  end
end

# The AWS SDK's client for HTTP/2 as it is, on top: bidirectional streams of events over TLS.
module AwsSdkTests
  TIMEOUT = 20

  def setup
    @peer = HTTP2Peers.start(self.class::PEER)
    limited "http-2 is not installed" if @peer.nil? && self.class::PEER == :original
    assert @peer, "the server does not start"
    @client = client
  end

  def teardown
    @client&.close_connection
  end

  def client(**options)
    Conversing::AsyncClient.new(
      endpoint: "https://127.0.0.1:#{@peer.tls}", region: "us-east-1", ssl_verify_peer: false,
      credentials: Aws::Credentials.new("key", "secret"), retry_limit: 0, **options
    )
  end

  def within(&block) = Timeout.timeout(TIMEOUT, &block)

  # The answers to the events that the block signals.
  def conversation(client = @client)
    input = Conversing::EventStreams::Events.new
    output = Conversing::EventStreams::Events.new
    heard = []
    output.on(:text_event) { |event| heard << event.text }
    output.on(:bytes_event) { |event| heard << event.bytes.read }
    within do
      response = client.converse(input, output)
      raise response.error if response.error

      yield input, heard
      input.signal(:end_stream)
      response.wait
      assert_predicate response, :successful?
    end
    heard
  end

  def test_events_go_both_ways
    heard = conversation do |input|
      input.signal(:text_event, text: "häßlich")
      input.signal(:bytes_event, bytes: "\xFF\x00".b)
    end
    assert_equal ["häßlich", "\xFF\x00".b], heard
  end

  def test_an_event_is_answered_before_the_next
    heard = conversation do |input, so_far|
      3.times do |at|
        input.signal(:text_event, text: at.to_s)
        Thread.pass until so_far.size > at
      end
    end
    assert_equal %w[0 1 2], heard
  end

  def test_events_larger_than_the_windows
    chunks = Array.new(40) { |at| at.chr * 16_000 }
    assert_equal chunks, conversation { |input| chunks.each { |bytes| input.signal(:bytes_event, bytes: bytes) } }
    big = "b" * 300_000
    assert_equal [big], conversation { |input| input.signal(:bytes_event, bytes: big) }
  end

  def test_conversations_share_a_connection
    heard = conversation do |outer, so_far|
      outer.signal(:text_event, text: "outer")
      assert_equal %w[inner], conversation { |inner| inner.signal(:text_event, text: "inner") }
      assert_equal "from afar", @client.json.wait.data.text
      Thread.pass until so_far.any?
      outer.signal(:text_event, text: "outer again")
    end
    assert_equal ["outer", "outer again"], heard
  end

  def test_plain_requests
    response = within { @client.json.wait }
    assert_equal "from afar", response.data.text
  end

  # Frames that the server still sends end the original's connection.
  def test_a_client_that_ends_first
    gap_of_the_original
    input = Conversing::EventStreams::Events.new
    within do
      response = @client.converse(input, Conversing::EventStreams::Events.new)
      input.signal(:text_event, text: "unanswered")
      response.join!
      assert_equal "from afar", @client.json.wait.data.text
    end
  end

  def test_a_connection_that_is_closed
    within do
      @client.json.wait
      @client.close_connection
      error = assert_raises(Seahorse::Client::Http2ConnectionClosedError) { @client.json.wait }
      assert_match(/is closed/, error.message)
      @client.new_connection
      assert_equal "from afar", @client.json.wait.data.text
    end
  end

  def test_the_trace_shows_frames
    log = StringIO.new
    traced = client(http_wire_trace: true, logger: Logger.new(log))
    assert_equal ["traced"], conversation(traced) { |input| input.signal(:text_event, text: "traced") }
    assert_match(/-> frame: \{.*settings/, log.string)
    assert_match(/<- frame: \{.*data/, log.string)
    traced.close_connection
  end
end

class AwsSdkToDropInTest < Wireloom::TestCase
  include AwsSdkTests
  PEER = :drop_in
end

class AwsSdkToOriginalTest < Wireloom::TestCase
  include AwsSdkTests
  PEER = :original
end
