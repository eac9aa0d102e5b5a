# frozen_string_literal: true

module Wireloom
  # Replacements that take another gem's place. Each is one file, `wireloom/drop_in/NAME`, to be required before anything
  # requires the original; later requires of the original find it loaded.
  #
  # `WIRELOOM_DROP_IN=0` in the environment switches all of them off, and `WIRELOOM_DROP_IN_NAME=0` (in capitals) one: the
  # file then requires the original instead.
  module DropIn
    class << self
      # Whether the replacement called +name+ is switched on.
      def enabled?(name)
        ["WIRELOOM_DROP_IN", "WIRELOOM_DROP_IN_#{name.upcase}"].none? do |variable|
          %w[0 false off no].include?(ENV[variable]&.downcase)
        end
      end

      # Takes the place of +gem+: yields to load the replacement, then enters +features+, by which the original can
      # be required by, as loaded. The first of them is the original's entry. When +name+ is switched off, requires that
      # instead of yielding.
      def replace(name, gem:, features:)
        return require(features.first) unless enabled?(name)

        loaded = features.find { |feature| paths(gem, feature).any? { |path| $LOADED_FEATURES.include?(path) } }
        if loaded
          raise LoadError, "wireloom: #{loaded} of #{gem} is loaded already; " \
                           "require \"wireloom/drop_in/#{name}\" before what requires it"
        end
        yield
        provide(gem, features)
        true
      end

      private

      # `require` looks whether FOLDER/feature.rb is loaded for any FOLDER of the load path, so one entry under this gem's
      # folder does for it. Loaders that resolve paths on their own (bootsnap, `-I`) need those of the original as well.
      def provide(gem, features)
        home = File.expand_path("..", __dir__)
        $LOAD_PATH.unshift(home) unless $LOAD_PATH.include?(home)
        features.each do |feature|
          [File.join(home, "#{feature}.rb"), *paths(gem, feature)].each do |path|
            $LOADED_FEATURES << path unless $LOADED_FEATURES.include?(path)
          end
        end
      end

      # Paths of the original's file +feature+ in the load path and in installed gems.
      def paths(gem, feature)
        folders = $LOAD_PATH.map { |folder| File.expand_path(folder.to_s) }
        folders.concat(Gem::Specification.find_all_by_name(gem).flat_map(&:full_require_paths)) if defined?(Gem::Specification)
        extension = RbConfig::CONFIG["DLEXT"]
        folders.uniq.product(["rb", extension])
               .map { |folder, suffix| File.join(folder, "#{feature}.#{suffix}") }
               .select { |path| File.file?(path) }
      end
    end

    # Notices the methods that a class gets, itself, by its subclasses or from modules, which may get theirs later. A replacement includes it in
    # a module that overrides {#wireloom_changed}, and extends its classes with that.
    #
    # @api private
    module Watch
      def method_added(name)
        super
        wireloom_changed(name)
      end

      def method_removed(name)
        super
        wireloom_changed(name)
      end

      def method_undefined(name)
        super
        wireloom_changed(name)
      end

      def include(*modules)
        super.tap { wireloom_follow(modules) }
      end

      def prepend(*modules)
        super.tap { wireloom_follow(modules) }
      end

      # Watches +modules+, and those that they include, as this class or module.
      def wireloom_follow(modules)
        watches = singleton_class.ancestors.select { |mod| !mod.is_a?(Class) && mod < Watch }
        modules.flat_map(&:ancestors).each { |mod| mod.extend(*watches) unless mod.is_a?(Class) || mod.frozen? }
        wireloom_changed(nil)
      end

      # Called when a method was added or removed, or with nil when modules were given.
      def wireloom_changed(_name); end
    end
  end
end
