# frozen_string_literal: true

require "open3"

# Servers of test/support/http_2_peer.rb: over the drop-in, and over the original when that is installed.
module HTTP2Peers
  Peer = Struct.new(:tls, :plain)

  # The one called +kind+, :drop_in or :original; nil when it cannot be had.
  def self.start(kind)
    @started ||= {}
    @started.fetch(kind) { @started[kind] = launch(kind) }
  end

  def self.launch(kind)
    environment = { "ORIGINAL" => kind == :original ? "1" : "0", "RUBYOPT" => nil }
    input, output, = Open3.popen2(environment, RbConfig.ruby, File.join(__dir__, "http_2_peer.rb"), err: File::NULL)
    line = output.gets or return
    Minitest.after_run { input.close }
    Peer.new(*line.split.map(&:to_i))
  end
  private_class_method :launch
end
