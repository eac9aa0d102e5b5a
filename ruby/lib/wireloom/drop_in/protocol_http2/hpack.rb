# frozen_string_literal: true

module Protocol
  # HPACK (RFC 7541), with the interface of protocol-hpack 1.5.
  module HPACK
    VERSION = "1.5.1"

    # Base of errors.
    class Error < StandardError
    end

    # A block breaks RFC 7541.
    class CompressionError < Error
    end

    # Not raised.
    class DecompressionError < Error
    end

    # How each representation begins.
    NO_INDEX_TYPE = { prefix: 4, pattern: 0x00 }.freeze
    NEVER_INDEXED_TYPE = { prefix: 4, pattern: 0x10 }.freeze
    CHANGE_TABLE_SIZE_TYPE = { prefix: 5, pattern: 0x20 }.freeze
    INCREMENTAL_TYPE = { prefix: 6, pattern: 0x40 }.freeze
    INDEXED_TYPE = { prefix: 7, pattern: 0x80 }.freeze
    HEADER_REPRESENTATION = {
      indexed: INDEXED_TYPE,
      incremental: INCREMENTAL_TYPE,
      no_index: NO_INDEX_TYPE,
      never_indexed: NEVER_INDEXED_TYPE,
      change_table_size: CHANGE_TABLE_SIZE_TYPE
    }.freeze

    # Options for contexts.
    NAIVE = { index: :never, huffman: :never }.freeze
    LINEAR = { index: :all, huffman: :never }.freeze
    STATIC = { index: :static, huffman: :never }.freeze
    SHORTER = { index: :all, huffman: :never }.freeze
    NAIVE_HUFFMAN = { index: :never, huffman: :always }.freeze
    LINEAR_HUFFMAN = { index: :all, huffman: :always }.freeze
    STATIC_HUFFMAN = { index: :static, huffman: :always }.freeze
    SHORTER_HUFFMAN = { index: :all, huffman: :shorter }.freeze
    # The last four are what the original has.
    MODES = {
      naive: NAIVE, linear: LINEAR, static: STATIC, shorter: SHORTER,
      naive_huffman: NAIVE_HUFFMAN, linear_huffman: NAIVE_HUFFMAN, static_huffman: NAIVE_HUFFMAN, shorter_huffman: NAIVE_HUFFMAN
    }.freeze

    # The Huffman code (RFC 7541 Appendix B).
    class Huffman
      # @param string [String]
      # @return [String] its code, BINARY
      def self.encode(string)
        Wireloom::HPACK.huffman_encode(string)
      end

      # @param string [String]
      # @return [String] BINARY
      # @raise [CompressionError] when it breaks RFC 7541 §5.2
      def self.decode(string)
        Wireloom::HPACK.huffman_decode(string)
      rescue Wireloom::HPACK::Error => e
        raise CompressionError, "Huffman decode error (#{e.message})"
      end
    end

    # A dynamic table and a policy.
    class Context < Wireloom::HPACK::Context
      STATIC_TABLE = begin
        context = Wireloom::HPACK::Context.new({})
        Array.new(61) { |index| context.at(index).freeze }.freeze
      end
      STATIC_EXACT_LOOKUP = STATIC_TABLE.each_with_index.with_object({}) do |((name, value), index), lookup|
        (lookup[name] ||= []) << [value, index].freeze
      end.each_value(&:freeze).freeze
      STATIC_NAME_LOOKUP = STATIC_EXACT_LOOKUP.transform_values { |entries| entries.first.last }.freeze

      # @return [:always, :never, :shorter] which strings are Huffman-coded
      attr_reader :huffman

      # @return [:all, :static, :never] the tables that an encoder refers to
      attr_reader :index

      # @param table [Array<Array(String, String)>, nil] entries to begin with, the newest first
      # @param huffman [:always, :never, :shorter]
      # @param index [:all, :static, :never]
      # @param table_size [Integer] in bytes
      def initialize(table = nil, huffman: :shorter, index: :all, table_size: 4096)
        super({ huffman: huffman, index: index, table_size: table_size, verbatim: true })
        @huffman = huffman
        @index = index
        resize(table_size)
        table&.reverse_each { |name, value| insert(name, value) }
      end

      # @return [Integer] the size that the table may have, in bytes
      def table_size
        limit
      end

      # Changes the size; entries that no longer fit go. Nothing is announced.
      #
      # @param size [Integer] in bytes
      def table_size=(size)
        resize(size)
      end

      # Changes the size up to which a block may change the table's.
      #
      # @param size [Integer, nil] in bytes
      # @api private
      def table_size_limit=(size)
        self.max_limit = size || 0xffff_ffff
        settle
      end

      # The same, with the command that announces it.
      #
      # @param size [Integer] in bytes
      # @return [Hash{Symbol => Object}]
      def change_table_size(size)
        self.table_size = size
        { type: :change_table_size, value: size }
      end

      # @return [Integer] the size of the entries, in bytes
      def compute_current_table_size
        current_table_size
      end

      # The field at +index+, counted from 0.
      #
      # @param index [Integer]
      # @return [Array(String, String)]
      # @raise [CompressionError] when there is none
      def dereference(index)
        at(index) or raise CompressionError, "Index #{index} too large!"
      end

      # Executes a command; returns the field that it encodes, or nil.
      #
      # @param command [Hash{Symbol => Object}]
      # @return [Array(String, String), nil]
      # @raise [CompressionError] for an unknown type, or an index without an entry
      def decode(command)
        case command[:type]
        when :change_table_size
          self.table_size = command[:value]
          nil
        when :indexed
          dereference(command[:name]).dup
        when :incremental, :no_index, :never_indexed
          name, value = command.values_at(:name, :value)
          if name.is_a?(Integer)
            name, indexed = dereference(name)
            value ||= indexed
          end
          insert(name, value) if command[:type] == :incremental
          [name, value]
        else
          raise CompressionError, "Invalid type: #{command[:type]}"
        end
      end

      # The commands for +headers+.
      #
      # @param headers [Enumerable<Array(String, String)>]
      # @return [Array<Hash>]
      def encode(headers)
        commands = []
        headers.each do |name, value|
          command = add_command(name, value)
          command[:type] = :no_index if @index != :all && command[:type] == :incremental
          commands << command
          decode(command)
        end
        commands
      end

      # The command for a field.
      #
      # @param name [String]
      # @param value [String]
      # @return [Hash{Symbol => Object}]
      def add_command(name, value)
        exact, of_name = find(name, value)
        return { name: exact, type: :indexed } if exact

        { name: of_name || name, value: value, type: :incremental }
      end

      # A context that one class knows all of: nothing of it is overridden.
      #
      # @api private
      def self.plain?(context)
        context.instance_of?(Context)
      end
    end

    # Headers into a block.
    class Compressor
      # @return [Integer, nil] the size that the peer's table may have
      attr_reader :table_size_limit

      # @return [String] the block
      attr_reader :buffer

      # @return [Context]
      attr_reader :context

      # @return [nil]
      attr_reader :offset

      # @param buffer [String] that the block is appended to
      # @param context [Context]
      # @param table_size_limit [Integer, nil]
      def initialize(buffer, context = Context.new, table_size_limit: nil)
        @buffer = buffer
        @context = context
        @table_size_limit = table_size_limit
      end

      # Appends bytes.
      #
      # @param bytes [String]
      def write_bytes(bytes)
        @buffer << bytes
      end

      # Appends an integer with a prefix of +bits+ bits (RFC 7541 §5.1).
      #
      # @param value [Integer]
      # @param bits [Integer]
      def write_integer(value, bits)
        limit = (1 << bits) - 1
        return @buffer << value if value < limit

        @buffer << limit unless bits.zero?
        value -= limit
        until value < 0x80
          @buffer << (value & 0x7f | 0x80)
          value >>= 7
        end
        @buffer << value
      end

      # @return [:always, :never, :shorter] of the context
      def huffman
        @context.huffman
      end

      # Appends a string (RFC 7541 §5.2).
      #
      # @param string [String]
      # @param huffman [:always, :never, :shorter]
      def write_string(string, huffman = self.huffman)
        coded = Huffman.encode(string) unless huffman == :never
        coded = nil if huffman == :shorter && coded.bytesize >= string.bytesize
        first = @buffer.bytesize
        write_integer((coded || string).bytesize, 7)
        write_bytes(coded || string.b)
        @buffer.setbyte(first, @buffer.getbyte(first) | 0x80) if coded
      end

      # Appends a command.
      #
      # @param command [Hash{Symbol => Object}]
      def write_header(command)
        name, value = command.values_at(:name, :value)
        representation = HEADER_REPRESENTATION[command[:type]]
        first = @buffer.bytesize
        case command[:type]
        when :indexed then write_integer(name + 1, representation[:prefix])
        when :change_table_size then write_integer(value, representation[:prefix])
        else
          write_integer(name.is_a?(Integer) ? name + 1 : 0, representation[:prefix])
          write_string(name) unless name.is_a?(Integer)
          write_string(value)
        end
        @buffer.setbyte(first, @buffer.getbyte(first) | representation[:pattern])
      end

      # The peer's setting allows a table of that size, and asks for none (RFC 7541 §4.2): it is this end's memory.
      LONGEST_TABLE = 1 << 16
      private_constant :LONGEST_TABLE

      # Appends the block of +headers+.
      #
      # @param headers [Enumerable<Array(String, String)>]
      # @param table_size [Integer, nil] announced when it is another one; up to 65,536 is used
      # @return [String] the buffer
      # @raise [TypeError] when a name or a value is not a String; the table is as before
      def encode(headers, table_size = @table_size_limit)
        table_size = [table_size, LONGEST_TABLE].min if table_size
        if table_size && table_size != @context.table_size
          write_header(@context.change_table_size(table_size))
        end
        if instance_of?(Compressor) && Context.plain?(@context)
          return @buffer << @context.compress(headers) if headers.is_a?(Array)

          list = []
          headers.each { |name, value| list << [name, value] }
          return @buffer << @context.compress(list)
        end
        @context.encode(headers).each { |command| write_header(command) }
        @buffer
      end
    end

    # A block into headers.
    class Decompressor
      MASK_SHIFT_4 = -16

      # @return [Integer, nil] the largest table that the peer may announce
      attr_reader :table_size_limit

      # @return [String] the block
      attr_reader :buffer

      # @return [Context]
      attr_reader :context

      # @return [Integer] how much of the block was read, in bytes
      attr_reader :offset

      # @param buffer [String] a block
      # @param context [Context]
      # @param table_size_limit [Integer, nil]
      def initialize(buffer, context = Context.new, table_size_limit: nil)
        @buffer = buffer
        @context = context
        @offset = 0
        @table_size_limit = table_size_limit
      end

      # @return [Boolean] whether all of the block was read
      def end?
        @offset >= @buffer.bytesize
      end

      # @return [Integer, nil] the next byte
      def read_byte
        byte = @buffer.getbyte(@offset)
        @offset += 1 if byte
        byte
      end

      # @return [Integer, nil] the next byte, which stays
      def peek_byte
        @buffer.getbyte(@offset)
      end

      # @param length [Integer]
      # @return [String] the next bytes
      def read_bytes(length)
        bytes = @buffer.byteslice(@offset, length)
        @offset += length
        bytes
      end

      # Reads an integer with a prefix of +bits+ bits (RFC 7541 §5.1).
      #
      # @param bits [Integer]
      # @return [Integer]
      # @raise [CompressionError] when it is not complete, or too large
      def read_integer(bits)
        limit = (1 << bits) - 1
        value = bits.zero? ? 0 : next_byte & limit
        return value if value < limit

        0.step(28, 7) do |shift|
          byte = next_byte
          value += (byte & 0x7f) << shift
          return value if byte < 0x80
        end
        raise CompressionError, "Integer too large!"
      end

      # Reads a string (RFC 7541 §5.2).
      #
      # @return [String] UTF-8
      # @raise [CompressionError] when it is not complete, or no Huffman code
      def read_string
        raise CompressionError, "Invalid string length!" if end?

        coded = peek_byte.anybits?(0x80)
        length = read_integer(7)
        string = read_bytes(length)
        if string.nil? || string.bytesize != length
          raise CompressionError, "Invalid string length, got #{string&.bytesize || 0}, expecting #{length}!"
        end
        string = Huffman.decode(string) if coded
        string.force_encoding(Encoding::UTF_8)
      end

      # Reads a command.
      #
      # @return [Hash{Symbol => Object}]
      # @raise [CompressionError] when it is not complete, or breaks RFC 7541 §6
      def read_header
        raise CompressionError, "Invalid header: no bytes!" if end?

        first = peek_byte
        type, representation = HEADER_REPRESENTATION.find { |_, rep| first >> rep[:prefix] << rep[:prefix] == rep[:pattern] }
        number = read_integer(representation[:prefix])
        case type
        when :indexed
          raise CompressionError if number.zero?

          { type: type, name: number - 1 }
        when :change_table_size
          check_table_size(number)
          { type: type, name: number, value: number }
        else
          { type: type, name: number.zero? ? read_string : number - 1, value: read_string }
        end
      end

      # Reads all of the block.
      #
      # @param list [Array] that the fields are appended to
      # @return [Array<Array(String, String)>] the list; pairs and Strings that come from a table are frozen
      # @raise [CompressionError] when it breaks RFC 7541
      def decode(list = [])
        return decode_commands(list) unless instance_of?(Decompressor) && Context.plain?(@context) && @offset.zero?

        @context.table_size_limit = @table_size_limit
        fields = @context.decompress(@buffer)
        @offset = @buffer.bytesize
        raise CompressionError, "Trailing table size update!" if fields.empty? && !@buffer.empty?

        list.empty? ? list.replace(fields) : list.concat(fields)
      rescue Wireloom::HPACK::Error => e
        raise CompressionError, e.message
      end

      private

      def decode_commands(list)
        command = nil
        until end?
          command = read_header
          pair = @context.decode(command)
          list << pair if pair
        end
        raise CompressionError, "Trailing table size update!" if command && command[:type] == :change_table_size

        list
      end

      def next_byte
        read_byte or raise CompressionError, "Invalid integer: no bytes!"
      end

      def check_table_size(size)
        return unless @table_size_limit && size > @table_size_limit

        raise CompressionError, "Table size #{size} exceeds limit #{@table_size_limit}!"
      end
    end
  end
end
