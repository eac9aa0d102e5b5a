# frozen_string_literal: true

module Protocol
  module WebSocket
    # Agreeing on extensions in the opening handshake (RFC 6455 §9.1).
    module Extensions
      # Yields the name and the +[key, value]+ pairs of each of the header's values.
      #
      # @param headers [Array<String>]
      # @yieldparam name [String]
      # @yieldparam arguments [Array<Array>]
      # @return [Enumerator] without a block
      def self.parse(headers)
        return to_enum(:parse, headers) unless block_given?

        headers.each do |header|
          name, *arguments = header.split(/\s*;\s*/)
          yield name, arguments.map { |argument| argument.split("=", 2) }
        end
      end

      # Base of both sides: the extensions that they have, as +[class, options]+, and those that were negotiated.
      class Side
        # @return [Side] with permessage-deflate
        def self.default
          new([[Extension::Compression, {}]])
        end

        # @param extensions [Array<Array(Module, Hash)>]
        def initialize(extensions = [])
          @extensions = extensions
          @accepted = []
        end

        # @return [Array<Array(Module, Hash)>]
        attr_reader :extensions, :accepted

        # The extensions by their names.
        #
        # @return [Hash{String => Array(Module, Hash)}]
        def named
          @extensions.to_h { |extension| [extension.first::NAME, extension] }
        end
      end
      private_constant :Side

      # The side that offers.
      class Client < Side
        # Yields the value of each offer, in parts.
        #
        # @yieldparam header [Array<String>]
        def offer
          @extensions.each do |extension, options|
            header = extension.offer(**options)
            yield header if header
          end
        end

        # Takes the server's answers.
        #
        # @param headers [Array<String>]
        # @return [Array<Array(Module, Hash)>]
        # @raise [ArgumentError] for a parameter that an extension does not know
        def accept(headers)
          named = self.named
          Extensions.parse(headers) do |name, arguments|
            klass, options = named.delete(name)
            @accepted << [klass, klass.accept(arguments, **options)] if klass
          end
          @accepted
        end

        # Makes the connection use the extensions that were negotiated.
        #
        # @param connection [Connection]
        def apply(connection)
          @accepted.each { |klass, options| klass.client(connection, **options) }
        end
      end

      # The side that answers.
      class Server < Side
        # Takes the client's offers, the first of each extension that suits; yields the value of each answer, in parts.
        #
        # @param headers [Array<String>]
        # @yieldparam header [Array<String>]
        # @return [Array<Array(Module, Hash)>]
        # @raise [ArgumentError] for a parameter that an extension does not know
        def accept(headers)
          named = self.named
          Extensions.parse(headers) do |name, arguments|
            klass, options = named[name]
            next unless klass && (answer = klass.negotiate(arguments, **options))

            named.delete(name)
            header, options = answer
            yield header if block_given?
            @accepted << [klass, options]
          end
          @accepted
        end

        # Makes the connection use the extensions that were negotiated.
        #
        # @param connection [Connection]
        def apply(connection)
          @accepted.reverse_each { |klass, options| klass.server(connection, **options) }
        end
      end
    end
  end
end
