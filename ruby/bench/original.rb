# frozen_string_literal: true

require "fileutils"
require "open3"
require "rbconfig"

module Bench
  # An original: `features` are what is required, `gem` what it is in, `oldest` the first release that is worth a race, `needs`
  # what else it loads. It is taken from a folder of Debian's, which ORIGINALS in the environment names, else from the one that
  # `./test newest` makes, else as it is installed.
  class Original
    FOLDER = ENV["ORIGINALS"] || File.expand_path("../../target/newest/root", __dir__)
    # Where gems lie there, or in a GEM_HOME.
    GEMS = "{usr/{share,lib/*}/rubygems-integration/*/,}gems"

    attr_reader :features

    # Whether the replacement needs it too.
    def both? = @both

    # The name of the gem.
    def name
      @gem
    end

    # +both+: the replacement needs the original's gem too.
    def initialize(features, gem:, oldest:, needs: [], both: false)
      @features = Array(features)
      @both = both
      @gem = gem
      @oldest = oldest
      @needs = needs
    end

    # The version to race, if there is one.
    def version
      found = folder(@gem)&.then { |path| version_of(path) } || Gem::Specification.find_all_by_name(@gem).map(&:version).max
      found if found && found >= Gem::Version.new(@oldest)
    end

    # The options with which Ruby finds this version.
    def arguments
      return [] unless folder(@gem)

      folders = [@gem, *@needs].filter_map { |name| folder(name) }.map { |path| File.join(path, "lib") }
      [*folders, *(Mask.folder if @gem == "websocket-driver")].flat_map { |path| ["-I", path] }
    end

    private

    def folder(name)
      Dir[File.join(FOLDER, GEMS, "#{name}-[0-9]*")].max_by { |path| version_of(path) }
    end

    def version_of(path)
      Gem::Version.new(path[/[\d.]+\z/])
    end
  end

  # websocket-driver masks in C, where that is built for the Ruby that runs; in such a folder it may be built for another one.
  module Mask
    SOURCE = File.expand_path("mask", __dir__)

    module_function

    def folder
      @folder ||= build(File.expand_path("../tmp/mask/#{RbConfig::CONFIG["ruby_version"]}-#{RbConfig::CONFIG["arch"]}", __dir__))
    end

    def build(folder)
      FileUtils.mkdir_p(folder)
      [[RbConfig.ruby, File.join(SOURCE, "extconf.rb")], ["make"]].each do |command|
        out, status = Open3.capture2e(*command, chdir: folder)
        raise "the mask of websocket-driver is not built:\n#{out}" unless status.success?
      end
      folder
    end
  end

  ORIGINALS = {
    "websocket_driver" => Original.new("websocket/driver", gem: "websocket-driver", oldest: "0.8.0",
                                                           needs: %w[websocket-extensions base64]),
    "protocol_websocket" => Original.new("protocol/websocket", gem: "protocol-websocket", oldest: "0.21.0",
                                                               needs: %w[protocol-http]),
    "http_2" => Original.new("http/2", gem: "http-2", oldest: "1.2.1"),
    # Its classes are in place under either contestant.
    "protocol_http2" => Original.new(%w[protocol/http2/framer protocol/http2/stream protocol/http2/client protocol/http2/server],
                                     gem: "protocol-http2", oldest: "0.22.0", needs: %w[protocol-hpack protocol-http],
                                     both: true)
  }.freeze
end
