# frozen_string_literal: true

module Wireloom
  # Header compression for HTTP/2 (RFC 7541). Header lists are Arrays of pairs of Strings; those that a decoder hands out are
  # UTF-8; a field that comes from a table is the same frozen String every time.
  #
  #   encoder = Wireloom::HPACK::Encoder.new
  #   decoder = Wireloom::HPACK::Decoder.new
  #   decoder.decode(encoder.encode([[":method", "GET"], ["x-trace", "1f2e"]]))
  #
  # After a Wireloom::HPACK::Error the tables of the two ends differ: decode nothing more with that decoder.
  module HPACK
    # @!method self.huffman_encode(string)
    #   @param string [String]
    #   @return [String] its Huffman code (RFC 7541 §5.2), BINARY

    # @!method self.huffman_decode(string)
    #   @param string [String]
    #   @return [String] BINARY
    #   @raise [Wireloom::HPACK::Error] when it is no Huffman code

    # Base of Encoder and Decoder: a dynamic table and a policy. Each call is atomic.
    class Table
      # @param table_size [Integer] in bytes, as RFC 7541 §4.1 counts them: both ends of a connection begin with 4096
      # @param index [:all, :static, :never] the tables that an encoder refers to
      # @param huffman [:shorter, :always, :never] which strings an encoder codes
      # @raise [ArgumentError] for another policy
      def initialize(table_size: 4096, index: :all, huffman: :shorter)
        @context = Context.new({ table_size: table_size, index: index, huffman: huffman })
      end

      # Takes a new SETTINGS_HEADER_TABLE_SIZE. An encoder announces it in its next block; a decoder expects it in the next block.
      #
      # @param size [Integer] in bytes
      def table_size_max=(size)
        @context.max_limit = size
      end

      # @return [Integer] the size in use, in bytes
      def table_size
        @context.limit
      end

      # @return [Array<Array(String, String)>] the entries of the dynamic table, newest first
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
      # @param headers [Array<Array(String, String)>, Hash] names are lower-cased, pseudo-fields go first
      # @return [String] the block, BINARY
      # @raise [TypeError] when a name or a value is not a String; the table is as before
      # @raise [ArgumentError] when one is longer than 64 MiB
      def encode(headers)
        @context.compress(headers)
      end
    end

    # Blocks into headers.
    class Decoder < Table
      # @param block [String] a whole block
      # @return [Array<Array(String, String)>] pairs and Strings that come from a table are frozen
      # @raise [Wireloom::HPACK::Error] when it breaks RFC 7541, or a block before it has raised NoMemoryError
      def decode(block)
        @context.decompress(block)
      end
    end
  end
end
