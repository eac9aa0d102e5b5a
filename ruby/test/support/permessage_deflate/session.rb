# frozen_string_literal: true

require "zlib"

class PermessageDeflate
  # Messages of one connection, by zlib.
  class Session
    def initialize(options)
      @level = options.fetch(:level, Zlib::DEFAULT_COMPRESSION)
      @mem_level = options.fetch(:mem_level, Zlib::DEF_MEM_LEVEL)
      @strategy = options.fetch(:strategy, Zlib::DEFAULT_STRATEGY)
    end

    def process_incoming_message(message)
      return message unless message.rsv1

      @inflate = nil unless @peer_context_takeover
      @inflate ||= Zlib::Inflate.new(-[@peer_window_bits, 9].max)
      message.data = @inflate.inflate(message.data) + @inflate.inflate("\x00\x00\xff\xff".b)
      message
    end

    def process_outgoing_message(message)
      @deflate = nil unless @own_context_takeover
      @deflate ||= Zlib::Deflate.new(@level, -[@own_window_bits, 9].max, @mem_level, @strategy)
      message.data = @deflate.deflate(message.data, Zlib::SYNC_FLUSH)[0...-4]
      message.rsv1 = true
      message
    end

    def close; end

    private

    # Takes the parameters that were negotiated.
    def take(own, peer, answer)
      @own_context_takeover, @peer_context_takeover = [own, peer].map { |end_| !answer["#{end_}_no_context_takeover"] }
      @own_window_bits, @peer_window_bits = [own, peer].map do |end_|
        bits = answer["#{end_}_max_window_bits"]
        bits.is_a?(Integer) ? bits : 15
      end
    end
  end
end
