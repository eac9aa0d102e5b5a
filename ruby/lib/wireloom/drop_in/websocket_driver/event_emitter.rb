# frozen_string_literal: true

module WebSocket
  class Driver
    # The native part, a private constant.
    Codec = Wireloom.const_get(:DriverCodec)
    private_constant :Codec

    # Listeners by event; events are the same as Symbols and as Strings.
    module EventEmitter
      class << self
        # Whether +object+ emits as this module does, so that the extension may do it in its stead.
        #
        # @param object [Object] that includes this module
        # @return [Boolean]
        def plain?(object)
          !@redefined && object.method(:emit).owner.equal?(self)
        end

        # @api private
        def wireloom_changed(name)
          @redefined ||= name == :emit
          super
        end

        # @api private
        def prepended(*)
          super
          Codec.changed
        end
      end
      @redefined = false

      # Without listeners.
      def initialize
        @listeners = {}
      end

      # Adds a listener.
      #
      # @param event [Symbol, String]
      # @param callable [#call, nil] in place of the block
      # @return [#call] the listener
      def add_listener(event, callable = nil, &block)
        listener = callable || block
        listeners(event) << listener
        listener
      end

      # Adds a listener.
      #
      # @param event [Symbol, String]
      # @param callable [#call, nil] in place of the block
      # @return [#call] the listener
      def on(event, callable = nil, &block)
        if callable
          add_listener(event, callable)
        else
          add_listener(event, &block)
        end
      end

      # Removes a listener.
      #
      # @param event [Symbol, String]
      # @param callable [#call, nil] in place of the block
      # @return [#call] the listener
      def remove_listener(event, callable = nil, &block)
        listener = callable || block
        listeners(event).delete(listener)
        listener
      end

      # The lists stay the same objects: a message that is being delivered meanwhile looks at them.
      #
      # @param event [Symbol, String, nil] nil for those of all events
      def remove_all_listeners(event = nil)
        if event
          listeners(event).clear
        else
          @listeners.each_value(&:clear)
        end
      end

      # Calls the listeners that an event has now, in order.
      #
      # @param event [Symbol, String]
      # @param args [Array] what they are called with
      def emit(event, *args)
        listeners(event).dup.each { |listener| listener.call(*args) }
      end

      # @param event [Symbol, String]
      # @return [Integer]
      def listener_count(event)
        listeners(event).size
      end

      # @param event [Symbol, String]
      # @return [Array<#call>] the list itself
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

    # Notices that something may have changed how messages are emitted.
    module Watch
      include Wireloom::DropIn::Watch

      # @api private
      def wireloom_changed(name)
        super
        Codec.changed if name.nil? || name == :emit
      end
    end
    private_constant :Watch
    EventEmitter.extend(Watch)

    # A listener that emits the event again, as another object's.
    class Forward
      # @return [EventEmitter] the object that emits the event again
      attr_reader :target

      # @param target [EventEmitter]
      # @param event [Symbol]
      def initialize(target, event)
        @target = target
        @event = event
      end

      # @param event [Struct]
      def call(event)
        @target.emit(@event, event)
      end
    end
  end
end
