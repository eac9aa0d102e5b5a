# frozen_string_literal: true

module Wireloom
  module DropIn
    module HTTP2
      # Notices when a method that frames go through is overridden in one of the classes. From then on every frame goes
      # through Ruby, as in the original. Subclasses and singleton classes are recognized natively. The same with `emit` and events, in
      # subclasses too.
      module Watch
        include DropIn::Watch

        METHODS = %i[
          send encode receive << settings goaway window_update close send_connection_preface
        ].freeze
        WATCHED = [::HTTP2::Connection, ::HTTP2::Client, ::HTTP2::Server, ::HTTP2::Stream].freeze

        def wireloom_changed(name)
          super
          HTTP2.override_emit if name.nil? ? Watch.emits?(self) : name == :emit
          return unless name.nil? || METHODS.include?(name)

          HTTP2.patched if (name && WATCHED.include?(self)) || Watch.overridden?
        end

        # Whether a class or module has `emit` from a module that is not the drop-in's.
        def self.emits?(mod)
          mod.ancestors.any? do |part|
            !part.is_a?(Class) && !part.equal?(::HTTP2::Emitter) && (part.method_defined?(:emit, false) || part.private_method_defined?(:emit, false))
          end
        end

        # Whether one of the classes has such a method from a module.
        def self.overridden?
          WATCHED.any? { |watched| METHODS.any? { |name| from_module?(watched, name) } }
        end

        def self.from_module?(watched, name)
          return false unless watched.method_defined?(name) || watched.private_method_defined?(name)

          !watched.instance_method(name).owner.is_a?(Class)
        end
        private_class_method :from_module?
      end
    end
  end
end

[*Wireloom::DropIn::HTTP2::Watch::WATCHED, HTTP2::Emitter].each { |watched| watched.extend(Wireloom::DropIn::HTTP2::Watch) }
