# frozen_string_literal: true

module Wireloom
  module DropIn
    module HTTP2
      # Notices when a method that frames go through is overridden in one of the classes. From then on every frame goes
      # through Ruby, as in the original. Subclasses and singleton classes are recognized natively.
      module Watch
        METHODS = %i[
          send encode receive << settings goaway window_update close send_connection_preface
        ].freeze
        WATCHED = [::HTTP2::Connection, ::HTTP2::Client, ::HTTP2::Server, ::HTTP2::Stream].freeze

        def method_added(name)
          super
          HTTP2.patched if METHODS.include?(name) && WATCHED.include?(self)
        end

        def prepend(*modules)
          super.tap { Later.follow(modules) if WATCHED.include?(self) }
        end

        def include(*modules)
          super.tap { Later.follow(modules) if WATCHED.include?(self) }
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

        # A module may get its methods after the class was given it.
        module Later
          def self.follow(modules)
            DropIn.follow(modules, self)
            HTTP2.patched if Watch.overridden?
          end

          def method_added(name)
            super
            HTTP2.patched if METHODS.include?(name) && Watch.overridden?
          end

          def include(*modules)
            super.tap { Later.follow(modules) }
          end

          def prepend(*modules)
            super.tap { Later.follow(modules) }
          end
        end
      end
    end
  end
end

Wireloom::DropIn::HTTP2::Watch::WATCHED.each { |watched| watched.extend(Wireloom::DropIn::HTTP2::Watch) }
