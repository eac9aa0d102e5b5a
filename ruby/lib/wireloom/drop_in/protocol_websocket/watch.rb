# frozen_string_literal: true

module Wireloom
  module ProtocolWebSocket
    # Notices when a method that the native fast paths omit is overridden, in a class that is extended with it or in a
    # subclass. A method of one object needs no watching: it shows in the object's class.
    module Watch
      include DropIn::Watch

      NAMES = %i[
        initialize apply unpack read_message mask_xor receive_text receive_binary receive_continuation read_frame
        unpack_frames closed? flush
      ].to_h { |name| [name, true] }.freeze

      # Their objects are made without calls. What connections and framers call is looked up before each is first read from.
      MADE = %i[
        Frame ContinuationFrame TextFrame BinaryFrame CloseFrame PingFrame PongFrame TextMessage BinaryMessage
      ].freeze
      private_constant :MADE

      def wireloom_changed(name)
        super
        if name.nil? || !is_a?(Class)
          ProtocolWebSocket.overridden(Watch.made_by_module) if name.nil? || NAMES[name]
        elsif NAMES[name]
          ProtocolWebSocket.overridden(self)
        end
      end

      # A class of those objects that has such a method from a module: it is as one that was reopened.
      def self.made_by_module
        made = MADE.map { |name| ::Protocol::WebSocket.const_get(name) }
        made.find { |mod| NAMES.each_key.any? { |name| from_module?(mod, name) } }
      end

      def self.from_module?(mod, name)
        return false unless mod.method_defined?(name) || mod.private_method_defined?(name)

        !mod.instance_method(name).owner.is_a?(Class)
      end
      private_class_method :from_module?
    end
  end
end
