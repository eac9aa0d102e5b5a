# frozen_string_literal: true

module Wireloom
  # Header compression for HTTP/2 (RFC 7541). Header lists are Arrays of pairs of Strings; those that a decoder hands out are
  # UTF-8; a field that comes from a table is the same frozen String every time.
  #
  #   encoder = Wireloom::HPACK::Encoder.new
  #   decoder = Wireloom::HPACK::Decoder.new
  #   decoder.decode(encoder.encode([[":method", "GET"], ["x-trace", "1f2e"]]))
  #
  # Errors are Wireloom::HPACK::Error: the two tables have parted, so decode nothing more with this decoder.
  module HPACK
    # Base of Encoder and Decoder: a dynamic table and a policy.
    class Table
      # +table_size+ is in bytes as RFC 7541 counts them: both ends of a connection begin with 4096.
      def initialize(table_size: 4096, index: :all, huffman: :shorter)
        @context = Context.new({ table_size: table_size, index: index, huffman: huffman })
      end

      # Takes a new SETTINGS_HEADER_TABLE_SIZE. An encoder announces it in its next block; a decoder expects it in the next block.
      def table_size_max=(size)
        @context.max_limit = size
      end

      # The size in use, in bytes.
      def table_size
        @context.limit
      end

      # The entries of the dynamic table, newest first.
      def to_a
        @context.table
      end

      private

      def initialize_copy(other)
        super
        @context = @context.dup
      end
    end

    # Headers into blocks.
    class Encoder < Table
      # The block of +headers+, an Array of pairs or a Hash: a binary String. Names are lower-cased, pseudo-fields go first.
      def encode(headers)
        @context.compress(headers)
      end
    end

    # Blocks into headers.
    class Decoder < Table
      # The headers of a whole block.
      def decode(block)
        @context.decompress(block)
      end
    end
  end
end
