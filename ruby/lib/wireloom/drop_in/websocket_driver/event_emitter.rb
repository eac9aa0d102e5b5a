# frozen_string_literal: true

module WebSocket
  class Driver
    # Listeners by event; events are the same as Symbols and as Strings.
    module EventEmitter
      class << self
        # Whether +object+ emits as this module does, so that the extension may do it in its stead.
        def plain?(object)
          !@redefined && object.method(:emit).owner.equal?(self)
        end

        def method_added(name)
          super
          return unless name == :emit

          @redefined = !@defined.nil?
          @defined = true
          Wireloom::DriverCodec.changed
        end

        def prepended(*)
          super
          Wireloom::DriverCodec.changed
        end

        def prepend(*)
          super.tap { Wireloom::DriverCodec.changed }
        end
      end
      @redefined = false
      @defined = nil

      def initialize
        @listeners = {}
      end

      def add_listener(event, callable = nil, &block)
        listener = callable || block
        listeners(event) << listener
        listener
      end

      def on(event, callable = nil, &block)
        if callable
          add_listener(event, callable)
        else
          add_listener(event, &block)
        end
      end

      def remove_listener(event, callable = nil, &block)
        listener = callable || block
        listeners(event).delete(listener)
        listener
      end

      # The lists stay the same objects: a message that is being delivered meanwhile looks at them.
      def remove_all_listeners(event = nil)
        if event
          listeners(event).clear
        else
          @listeners.each_value(&:clear)
        end
      end

      def emit(event, *args)
        listeners(event).dup.each { |listener| listener.call(*args) }
      end

      def listener_count(event)
        listeners(event).size
      end

      def listeners(event)
        event = event.to_s.to_sym unless event.is_a?(Symbol)
        @listeners[event] ||= []
      end

      private

      # For the extension, whenever it has messages to deliver: the list of their listeners, or another emitter
      # that they are forwarded to, or nil when they have to go through #emit. +known+ means that #emit is not overridden.
      def message_listeners(known)
        return unless known || EventEmitter.plain?(self)

        list = @listeners[:message] ||= []
        list.size == 1 && list[0].is_a?(Forward) ? list[0].target : list
      end
    end

    # A listener that emits the event again, as another object's.
    class Forward
      attr_reader :target

      def initialize(target, event)
        @target = target
        @event = event
      end

      def call(event)
        @target.emit(@event, event)
      end
    end
  end
end
