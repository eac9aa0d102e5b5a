# frozen_string_literal: true

module Wireloom
  module ProtocolWebSocket
    # Notices when a method that the native fast paths omit is overridden, in a class that is extended with it or in a
    # subclass. A method of one object needs no watching: it shows in the object's class.
    module Watch
      NAMES = %i[
        initialize apply unpack read_message mask_xor receive_text receive_binary receive_continuation read_frame
        unpack_frames closed? flush
      ].to_h { |name| [name, true] }.freeze

      def method_added(name)
        ProtocolWebSocket.overridden(self) if NAMES[name]
        super
      end

      def include(*)
        super.tap { ProtocolWebSocket.overridden(nil) }
      end

      def prepend(*)
        super.tap { ProtocolWebSocket.overridden(nil) }
      end
    end
  end
end
