# frozen_string_literal: true

require_relative "http"
require_relative "event_emitter"

module WebSocket
  # Masks payloads (RFC 6455 §5.3).
  module Mask
    # A masked copy of +payload+, or itself where +mask+ is not a String of four bytes.
    #
    # @param payload [String]
    # @param mask [String, nil]
    # @return [String]
    def self.mask(payload, mask)
      CODEC.mask(payload, mask)
    end

    CODEC = Wireloom.const_get(:DriverCodec)
    private_constant :CODEC
  end

  # One end of a WebSocket: bytes are given to #parse, and go out by `write` of the socket it was made with.
  class Driver
    MAX_LENGTH = 0x3ffffff
    PORTS = { "ws" => 80, "wss" => 443 }.freeze
    STATES = %i[connecting open closing closed].freeze
    BINARY_DATA_FORMATS = %i[string array].freeze
    OPTIONS = %i[max_length masking require_masking protocols binary_data_format].freeze
    private_constant :BINARY_DATA_FORMATS, :OPTIONS

    ConnectEvent = Struct.new(nil)
    OpenEvent = Struct.new(nil)
    MessageEvent = Struct.new(:data)
    PingEvent = Struct.new(:data)
    PongEvent = Struct.new(:data)
    CloseEvent = Struct.new(:code, :reason)

    ProtocolError = Class.new(StandardError)
    URIError = Class.new(ArgumentError)
    ConfigurationError = Class.new(ArgumentError)

    include EventEmitter
    extend Watch
    # The subprotocol that was agreed on, and the state: -1 before a client's handshake, then 0 to 3 as {#state} names them.
    #
    # @return [String, nil], [Integer]
    attr_reader :protocol, :ready_state

    class << self
      # A client's driver.
      #
      # @param socket [#url, #write]
      # @param options [Hash] :max_length, :protocols, :binary_data_format (:string or :array)
      # @return [Client]
      # @raise [URIError] when the URL is not valid
      # @raise [ConfigurationError] for an option that is not known
      def client(socket, options = {})
        Client.new(socket, options.merge(masking: true))
      end

      # A server's driver that reads the HTTP request as well.
      #
      # @param socket [#write]
      # @param options [Hash] as for {client}
      # @return [Server]
      # @raise [ConfigurationError] for an option that is not known
      def server(socket, options = {})
        Server.new(socket, options.merge(require_masking: true))
      end

      # A server's driver for a request that a Rack server has read.
      #
      # @param socket [#env, #write]
      # @param options [Hash] as for {client}
      # @return [Hybi, Draft76, Draft75] by the version that the request asks for
      # @raise [ConfigurationError] for an option that is not known
      def rack(socket, options = {})
        env = socket.env
        if env["HTTP_SEC_WEBSOCKET_VERSION"] || env["HTTP_SEC_WEBSOCKET_KEY"]
          Hybi.new(socket, options.merge(require_masking: true))
        elsif env["HTTP_SEC_WEBSOCKET_KEY1"] || env["HTTP_SEC_WEBSOCKET_KEY2"]
          Draft76.new(socket, options)
        else
          Draft75.new(socket, options)
        end
      end

      # A String in +encoding+, or as it is without one. An Array of bytes becomes BINARY without one; the caller's
      # String stays as it is.
      #
      # @param data [String, Array<Integer>]
      # @param encoding [Encoding, nil]
      # @return [String]
      def encode(data, encoding = nil)
        if data.is_a?(Array)
          data = data.pack("C*")
          encoding ||= Encoding::BINARY
        end
        return data if encoding.nil? || data.encoding == encoding
        return data.encode(encoding) unless data.encoding == Encoding::BINARY || encoding == Encoding::BINARY

        data.dup.force_encoding(encoding)
      end

      # The value of Host.
      #
      # @param uri [URI]
      # @return [String]
      def host_header(uri)
        uri.port && uri.port != PORTS[uri.scheme] ? "#{uri.host}:#{uri.port}" : uri.host
      end

      # Refuses options that are not among +valid_keys+.
      #
      # @param options [Hash]
      # @param valid_keys [Array<Symbol>]
      # @raise [ConfigurationError] for another one, or a binary_data_format that does not exist
      def validate_options(options, valid_keys)
        options.each_key do |key|
          raise ConfigurationError, "Unrecognized option: #{key.inspect}" unless valid_keys.include?(key)
        end
        format = options[:binary_data_format]
        return if !format || BINARY_DATA_FORMATS.include?(format)

        raise ConfigurationError, "Invalid :binary_data_format: #{format.inspect}"
      end

      # Whether a request asks for a WebSocket.
      #
      # @param env [Hash{String => Object}] of Rack
      # @return [Boolean]
      def websocket?(env)
        connection = env["HTTP_CONNECTION"] || ""
        upgrade = env["HTTP_UPGRADE"] || ""

        env["REQUEST_METHOD"] == "GET" &&
          list(connection.downcase).include?("upgrade") &&
          upgrade.downcase == "websocket"
      end

      # The members of a list in a header field. Without a regular expression, as those are the peer's blanks and commas.
      #
      # @param value [String]
      # @return [Array<String>]
      def list(value)
        value.split(",").map(&:strip)
      end

    end

    # @param socket [#write]
    # @param options [Hash] as for {Driver.client}
    # @raise [ConfigurationError] for an option that is not known
    def initialize(socket, options = {})
      super()
      Driver.validate_options(options, OPTIONS)
      @socket = socket
      @options = options
      @binary_data_format = options[:binary_data_format] || :string
      @max_length = options[:max_length] || MAX_LENGTH
      @headers = Headers.new
      @queue = []
      @ready_state = 0
    end

    # @return [:connecting, :open, :closing, :closed, nil]
    def state
      STATES[@ready_state] unless @ready_state.negative?
    end

    # Takes an extension of the framework websocket-extensions; drafts have none.
    #
    # @param _extension [Object]
    # @return [Boolean] whether it was taken
    def add_extension(_extension)
      false
    end

    # Adds a header to the handshake.
    #
    # @param name [String]
    # @param value [#to_s, nil] nil is left out
    # @return [Boolean] false once the handshake is over
    def set_header(name, value)
      return false unless @ready_state <= 0

      @headers[name] = value
      true
    end

    # Answers the handshake.
    #
    # @return [Boolean] false when it was answered before, or is refused
    def start
      return false unless @ready_state.zero?
      return fail_handshake(ProtocolError.new("Not a WebSocket request")) unless Driver.websocket?(@socket.env)

      begin
        response = handshake_response
      rescue StandardError => e
        return fail_handshake(e)
      end

      @socket.write(Driver.encode(response, Encoding::BINARY))
      open unless @stage == -1
      true
    end

    # Sends a text message.
    #
    # @param message [String, Array<Integer>]
    # @return [Boolean] whether it was sent or queued
    def text(message)
      frame(Driver.encode(message, Encoding::UTF_8), :text)
    end

    # Sends a binary message.
    #
    # @param _message [String, Array<Integer>]
    # @return [Boolean] whether it was sent or queued
    def binary(_message)
      false
    end

    # Sends a ping.
    #
    # @return [Boolean] whether it was sent or queued
    def ping(*)
      false
    end

    # Sends a pong.
    #
    # @return [Boolean] whether it was sent or queued
    def pong(*)
      false
    end

    # Begins the closing handshake, or closes where there is none.
    #
    # @param _reason [String, nil]
    # @param _code [Integer, nil]
    # @return [Boolean] false when that was done before
    def close(_reason = nil, _code = nil)
      return false unless @ready_state == 1

      @ready_state = 3
      emit(:close, CloseEvent.new(nil, nil))
      true
    end

    private

    def fail_handshake(error)
      headers = Headers.new
      headers["Content-Type"] = "text/plain"
      headers["Content-Length"] = error.message.bytesize
      response = ["HTTP/1.1 400 Bad Request", headers.to_s, error.message].join("\r\n")
      @socket.write(Driver.encode(response, Encoding::BINARY))
      fail(:protocol_error, error.message)
      false
    end

    def fail(_type, message)
      @ready_state = 2
      emit(:error, ProtocolError.new(message))
      close
    end

    def open
      @ready_state = 1
      queue = @queue
      @queue = []
      queue.each { |message| frame(*message) }
      emit(:open, OpenEvent.new)
    end

    def queue(message)
      @queue << message
      true
    end
  end
end

require_relative "headers"
require_relative "hybi"
require_relative "client"
require_relative "server"
require_relative "proxy"
require_relative "draft75"
require_relative "draft76"
require_relative "stream_reader"
