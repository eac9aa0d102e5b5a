# frozen_string_literal: true

module WebSocket
  class Driver
    # Header fields: those that arrived, to be read by any spelling of their names, and those to be sent, as text.
    class Headers
      ALLOWED_DUPLICATES = %w[set-cookie set-cookie2 warning www-authenticate].freeze

      # @param received [Hash{String => String}]
      def initialize(received = {})
        @raw = received
        @received = received.to_h { |name, value| [HTTP.normalize_header(name), value] }
        clear
      end

      # Forgets those to be sent.
      def clear
        @sent = Set.new
        @lines = []
      end

      # @param name [#to_s]
      # @return [String, nil] of those that arrived
      def [](name)
        @received[HTTP.normalize_header(name)]
      end

      # The first value given for a name stays, but for the few that may be repeated.
      #
      # @param name [#to_s]
      # @param value [#to_s, nil] nil is left out
      def []=(name, value)
        return if value.nil?

        key = HTTP.normalize_header(name)
        return unless @sent.add?(key) || ALLOWED_DUPLICATES.include?(key)

        # A line break in a value would begin a header of the attacker's choice.
        @lines << "#{name.to_s.strip}: #{value.to_s.strip}".gsub(/[\r\n]+/, " ").concat("\r\n")
      end

      # @return [String]
      def inspect
        @raw.inspect
      end

      # @return [Hash{String => String}] those that arrived
      def to_h
        @raw.dup
      end

      # @return [String] those to be sent, a line each
      def to_s
        @lines.join
      end
    end
  end
end
