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
          HTTP2.patched if WATCHED.include?(self) && Watch.any?(modules)
          super
        end

        def include(*modules)
          HTTP2.patched if WATCHED.include?(self) && Watch.any?(modules)
          super
        end

        def self.any?(modules)
          modules.any? { |mod| METHODS.any? { |name| mod.method_defined?(name) || mod.private_method_defined?(name) } }
        end
      end
    end
  end
end

Wireloom::DropIn::HTTP2::Watch::WATCHED.each { |watched| watched.extend(Wireloom::DropIn::HTTP2::Watch) }
