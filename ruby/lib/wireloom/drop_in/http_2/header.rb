# frozen_string_literal: true

module HTTP2
  # HPACK (RFC 7541).
  module Header
    # How each representation begins.
    HEADREP = {
      indexed: { prefix: 7, pattern: 0x80 },
      incremental: { prefix: 6, pattern: 0x40 },
      noindex: { prefix: 4, pattern: 0x00 },
      neverindexed: { prefix: 4, pattern: 0x10 },
      changetablesize: { prefix: 5, pattern: 0x20 }
    }.each_value(&:freeze).freeze

    # Options for compressors.
    NAIVE = { index: :never, huffman: :never }.freeze
    LINEAR = { index: :all, huffman: :never }.freeze
    STATIC = { index: :static, huffman: :never }.freeze
    SHORTER = { index: :all, huffman: :never }.freeze
    NAIVEH = { index: :never, huffman: :always }.freeze
    LINEARH = { index: :all, huffman: :always }.freeze
    STATICH = { index: :static, huffman: :always }.freeze
    SHORTERH = { index: :all, huffman: :shorter }.freeze

    # The Huffman code (RFC 7541 Appendix B).
    module Huffman
      include Error

      BITS_AT_ONCE = 4
      EOS = 256
      private_constant :EOS

      # Code and length in bits for each byte, and for the end of a string.
      CODES = [
        *Array.new(256) do |byte|
          # Eight of them fill as many bytes as one has bits.
          coded = Wireloom::HPACK.huffman_encode(byte.chr * 8)
          [coded.unpack1("B*")[0, coded.bytesize].to_i(2), coded.bytesize].freeze
        end,
        [0x3fffffff, 30].freeze
      ].freeze
      EOS_PADDING = Array.new(8) { |bits| ("1" * bits).b.freeze }.freeze
      ENCODE_TABLE = CODES.map { |code, length| code.to_s(2).rjust(length, "0").freeze }.freeze

      # The tables of the original's decoder are in its own file, where that gem is installed.
      autoload :MAX_FINAL_STATE, "http/2/header/huffman_statemachine"
      autoload :MACHINE, "http/2/header/huffman_statemachine"

      class << self
        # Appends the code of +string+ to +buffer+.
        #
        # @param string [String]
        # @param buffer [String]
        # @return [String] the buffer
        def encode(string, buffer = "".b)
          buffer << Wireloom::HPACK.huffman_encode(string)
        end

        # Decodes +string+.
        #
        # @param string [String]
        # @return [String] BINARY
        # @raise [Error::CompressionError] when it breaks RFC 7541 §5.2
        def decode(string)
          Wireloom::HPACK.huffman_decode(string)
        rescue Wireloom::HPACK::Error => e
          raise Error::CompressionError, e.message
        end
      end
    end

    # A dynamic table, and the commands that change it.
    class EncodingContext < Wireloom::HPACK::Context
      include Error

      STATIC_TABLE = begin
        context = Wireloom::HPACK::Context.new({})
        Array.new(61) { |index| context.at(index).freeze }.freeze
      end
      STATIC_TABLE_BY_FIELD = STATIC_TABLE.each_with_index.with_object({}) do |((field, value), index), by_field|
        (by_field[field] ||= []) << [index, value].freeze
      end.each_value(&:freeze).freeze
      STATIC_TABLE_SIZE = STATIC_TABLE.size
      STATIC_ALL = %i[all static].freeze
      STATIC_NEVER = %i[never static].freeze
      UPPER = /[[:upper:]]/.freeze

      # The settings, and those of them that matter here, as a Hash.
      #
      # @return [Settings], [Hash{Symbol => Object}]
      attr_reader :settings, :options

      # Only +:huffman+, +:index+ and +:table_size+ of the settings matter, which may be a Hash.
      #
      # @param settings [Settings, Hash]
      def initialize(settings = Settings.new)
        settings = Settings.new(**settings.slice(*Settings.members)) if settings.is_a?(Hash)
        @settings = settings
        @options = { huffman: settings.huffman, index: settings.index, table_size: settings.table_size }
        @table_updated = false
        super(@options.merge(fill_path: true))
      end

      # The field at +index+, counted from 0.
      #
      # @param index [Integer]
      # @return [Array(String, String)]
      # @raise [Error::CompressionError] when there is no such entry
      def dereference(index)
        at(index) or raise CompressionError, "Index too large"
      end

      # Executes a command; returns the field that it encodes, or nil.
      #
      # @param command [Hash{Symbol => Object}]
      # @return [Array(String, String), nil]
      # @raise [Error::CompressionError] when it breaks RFC 7541
      # @raise [Error::ProtocolError] when a name is not in lower case
      def process(command)
        name, value = command.values_at(:name, :value)
        type = command[:type]
        raise CompressionError, "dynamic table size update required" if type != :changetablesize && update_due

        case type
        when :changetablesize
          change_table_size(value)
        when :indexed
          dereference(name)
        when :incremental, :noindex, :neverindexed
          literal(type, name, value)
        else
          raise CompressionError, "Invalid type: #{type}"
        end
      end

      # The commands for +headers+, yielded or returned.
      #
      # @param headers [Array<Array(String, String)>, Hash]
      # @yieldparam command [Hash{Symbol => Object}]
      # @return [Array<Hash>] without a block
      def encode(headers, &block)
        return to_enum(:encode, headers).to_a unless block

        size_updates(&block)
        noindex = STATIC_NEVER.include?(@options[:index])
        headers.each do |field, value|
          field = field.downcase if UPPER.match?(field)
          value = "/" if field == ":path" && value.empty?
          command = addcmd(field, value)
          command[:type] = :noindex if noindex && command[:type] == :incremental
          process(command)
          yield command
        end
      end

      # The command for a field.
      #
      # @param field [String]
      # @param value [String]
      # @return [Hash{Symbol => Object}]
      def addcmd(field, value)
        exact, name = find(field, value)
        return { name: exact, type: :indexed } if exact

        { name: name || field, value: value, type: :incremental }
      end

      # Changes the size in use; entries that no longer fit go.
      #
      # @param size [Integer] in bytes
      def table_size=(size)
        self.limit = size
      end

      # Changes the size that SETTINGS allow.
      #
      # @param size [Integer] in bytes
      def max_table_size=(size)
        self.max_limit = size
      end

      # Within the block, sizes may change only before the first entry is added.
      #
      # @return [Object] of the block
      def listen_on_table
        yield
      ensure
        @table_updated = false
      end

      private

      def add_to_table(*field)
        insert(*field.flatten)
      end

      def change_table_size(size)
        raise CompressionError, "tried to change table size after adding elements to table" if @table_updated
        raise CompressionError, "dynamic table size update exceed limit" if size > max_limit

        settle if update_due.nil? || size <= update_due
        self.limit = size
        nil
      end

      def literal(type, name, value)
        if name.is_a?(Integer)
          name, indexed = dereference(name)
          value ||= indexed
        elsif UPPER.match?(name)
          raise ProtocolError, "Invalid uppercase key: #{name}"
        end
        if type == :incremental
          add_to_table(name, value)
          @table_updated = true
        end
        [name, value]
      end

      def size_updates
        if (smallest = update_due)
          self.limit = smallest
          yield({ type: :changetablesize, value: smallest })
        end
        settle
        size = [@options[:table_size], max_limit].min
        return if size == limit

        self.limit = size
        yield({ type: :changetablesize, value: size })
      end
    end

    # Headers into blocks.
    class Compressor
      include PackingExtensions
      include BufferUtils

      # @param settings [Settings, Hash] of which `:huffman`, `:index` and `:table_size` matter
      def initialize(settings = Settings.new)
        @cc = EncodingContext.new(settings)
      end

      # Changes the size of the table.
      #
      # @param size [Integer] in bytes
      def table_size=(size)
        @cc.table_size = size
      end

      # Changes the size that SETTINGS allow; the next block announces it.
      #
      # @param size [Integer] in bytes
      def max_table_size=(size)
        @cc.max_table_size = size
      end

      # An integer with a prefix of +bits+ bits, inserted into +buffer+.
      #
      # @param number [Integer]
      # @param bits [Integer]
      # @param buffer [String]
      # @param offset [Integer] where it goes
      # @return [String] the buffer
      def integer(number, bits, buffer: "".b, offset: buffer.bytesize)
        limit = (1 << bits) - 1
        return pack([number], "C", buffer: buffer, offset: offset) if number < limit

        bytes = bits.zero? ? [] : [limit]
        number -= limit
        while number >= 0x80
          bytes << ((number & 0x7f) | 0x80)
          number >>= 7
        end
        pack(bytes << number, "C*", buffer: buffer, offset: offset)
      end

      # A string, Huffman-coded or not as the options say, appended to +buffer+.
      #
      # @param string [String]
      # @param buffer [String]
      # @return [String] the buffer
      def string(string, buffer = "".b)
        coded = Huffman.encode(string) unless @cc.options[:huffman] == :never
        coded = nil if @cc.options[:huffman] == :shorter && coded.bytesize >= string.bytesize
        offset = buffer.bytesize
        integer((coded || string).bytesize, 7, buffer: buffer)
        buffer.setbyte(offset, buffer.getbyte(offset) | 0x80) if coded
        append_str(buffer, coded || string)
      end

      # A command, appended to +buffer+.
      #
      # @param command [Hash{Symbol => Object}]
      # @param buffer [String]
      # @return [String] the buffer
      def header(command, buffer = "".b)
        representation = HEADREP.fetch(command[:type])
        offset = buffer.bytesize
        name, value = command.values_at(:name, :value)
        case command[:type]
        when :indexed then integer(name + 1, representation[:prefix], buffer: buffer)
        when :changetablesize then integer(value, representation[:prefix], buffer: buffer)
        else
          integer(name.is_a?(Integer) ? name + 1 : 0, representation[:prefix], buffer: buffer)
          string(name, buffer) unless name.is_a?(Integer)
          string(value, buffer)
        end
        buffer.setbyte(offset, buffer.getbyte(offset) | representation[:pattern])
        buffer
      end

      # The block of +headers+, pairs or a Hash.
      #
      # @param headers [Array<Array(String, String)>, Hash] names are lower-cased, pseudo-fields go first
      # @return [String] BINARY
      # @raise [TypeError] when a name or a value is not a String
      def encode(headers)
        @cc.compress(headers)
      end
    end

    # Blocks into headers.
    class Decompressor
      include Error
      include BufferUtils

      FORBIDDEN_HEADERS = %w[connection te].freeze

      # Of the settings only +:table_size+ and +:settings_max_header_list_size+ matter.
      #
      # @param settings [Settings, Hash]
      def initialize(settings = Settings.new)
        @cc = EncodingContext.new(settings)
        self.max_header_list_size = @cc.settings.settings_max_header_list_size
      end

      # Changes the largest list of headers, in bytes as SETTINGS_MAX_HEADER_LIST_SIZE counts them.
      #
      # @param size [Integer] in bytes
      def max_header_list_size=(size)
        @cc.list_size_max = size
      end

      # Takes headers in any order from now on, and those of connections too.
      def accept_invalid_headers!
        @cc.lenient = true
      end

      # Changes the size of the table.
      #
      # @param size [Integer] in bytes
      def table_size=(size)
        @cc.table_size = size
      end

      # Changes the size that SETTINGS allow; the next block has to follow.
      #
      # @param size [Integer] in bytes
      def max_table_size=(size)
        @cc.max_table_size = size
      end

      # Takes an integer with a prefix of +bits+ bits from the front of +buffer+.
      #
      # @param buffer [String]
      # @param bits [Integer]
      # @return [Integer]
      # @raise [Error::CompressionError] when it is not complete, or too large
      def integer(buffer, bits)
        limit = (1 << bits) - 1
        number = bits.zero? ? 0 : next_byte(buffer) & limit
        return number if number < limit

        0.step(28, 7) do |shift|
          byte = next_byte(buffer)
          number += (byte & 0x7f) << shift
          return number if byte < 0x80
        end
        raise CompressionError, "integer too large"
      end

      # Takes a string from the front of +buffer+.
      #
      # @param buffer [String]
      # @return [String]
      # @raise [Error::CompressionError] when it is not complete
      def string(buffer)
        raise CompressionError, "invalid header block fragment" if buffer.empty?

        coded = buffer.getbyte(0).anybits?(0x80)
        length = integer(buffer, 7)
        string = read_str(buffer, length)
        raise CompressionError, "string too short" unless string.bytesize == length

        string = Huffman.decode(string) if coded
        string.force_encoding(Encoding::UTF_8)
      end

      # Takes a command from the front of +buffer+.
      #
      # @param buffer [String]
      # @return [Hash{Symbol => Object}]
      # @raise [Error::CompressionError] when it breaks RFC 7541 §6
      def header(buffer)
        peek = buffer.getbyte(0)
        type, representation = HEADREP.find { |_, desc| (peek >> desc[:prefix]) << desc[:prefix] == desc[:pattern] }
        raise CompressionError unless type

        name = integer(buffer, representation[:prefix])
        case type
        when :indexed
          raise CompressionError if name.zero?

          { type: type, name: name - 1 }
        when :changetablesize
          { type: type, name: name, value: name }
        else
          name = name.zero? ? string(buffer) : name - 1
          { type: type, name: name, value: string(buffer) }
        end
      end

      # The headers of a whole block. The method, the status, the length and the trailers are set in +frame+, a Hash.
      #
      # @param block [String]
      # @param frame [Hash, nil]
      # @return [Array<Array(String, String)>] Strings and pairs that come from a table are frozen
      # @raise [Error::CompressionError] when it breaks RFC 7541
      # @raise [Error::ProtocolError] when a header breaks RFC 9113 §8.2
      def decode(block, frame = nil)
        @cc.decompress_message(block, frame)
      rescue Wireloom::HPACK::FieldError => e
        raise ProtocolError, e.message
      rescue Wireloom::HPACK::Error => e
        raise CompressionError, e.message
      end

      private

      def next_byte(buffer)
        raise CompressionError, "invalid header block fragment" if buffer.empty?

        shift_byte(buffer)
      end
    end
  end
end
