# frozen_string_literal: true

module HTTP2
  # Settings that never go on the wire.
  ENCODING_CONTEXT_SETTINGS = %i[huffman index table_size].freeze

  # Settings that one side of a connection asks the other to keep (RFC 9113 §6.5.2), and how it encodes headers.
  Settings = Struct.new(
    :settings_header_table_size, :settings_enable_push, :settings_max_concurrent_streams, :settings_initial_window_size,
    :settings_max_frame_size, :settings_max_header_list_size, :settings_enable_connect_protocol,
    :settings_no_rfc7540_priorities, :huffman, :index, :table_size,
    keyword_init: true
  ) do
    # Settings that are not given are those of DEFAULT_CONNECTION_SETTINGS; nil means that a setting is not sent.
    #
    # @param huffman [Symbol] of {Header::Compressor}
    # @param index [Symbol] likewise
    # @param table_size [Integer] likewise
    # @param settings [Hash{Symbol => Integer}]
    # @raise [ArgumentError] for a setting that does not exist
    def initialize(huffman: :shorter, index: :all, table_size: 4096, **settings)
      super(huffman: huffman, index: index, table_size: table_size, **DEFAULT_CONNECTION_SETTINGS, **settings)
    end

    # Yields the name and the value of each setting that goes into SETTINGS.
    #
    # @yieldparam name [Symbol]
    # @yieldparam value [Integer]
    # @return [Enumerator] without a block
    def connection_settings
      return enum_for(__method__) unless block_given?

      each_pair { |name, value| yield name, value unless ENCODING_CONTEXT_SETTINGS.include?(name) || value.nil? }
    end
  end
end
