# frozen_string_literal: true

require_relative "test_helper"
require "json"
require "open3"
require "rbconfig"

# The replacements and their originals, at the same random things. WIRELOOM_SEED=random explores, WIRELOOM_SEED=n begins there.
class AlikeTest < Wireloom::TestCase
  COUNT = 800

  # The results of +COUNT+ seeds with the original of +gem+ and with its replacement, seed by seed.
  def each_outcome(gem, newest, given = {})
    version = Gem::Specification.find_by_name(gem).version
    limited "#{gem} is older than #{newest}" if gem == "http-2" && version < Gem::Version.new(newest)
    seed = ENV["WIRELOOM_SEED"] == "random" ? Random.new_seed % 1_000_000 : (ENV["WIRELOOM_SEED"] || 1).to_i
    file = File.expand_path("drop_in/#{gem.tr("-", "_")}_alike.rb", __dir__)
    outcomes = %w[1 0].map do |original|
      env = { "ORIGINAL" => original, "OLD" => version < Gem::Version.new(newest) ? "1" : "0" }.merge(given)
      out, err, status = Open3.capture3(env, RbConfig.ruby, file, seed.to_s, COUNT.to_s)
      assert status.success?, err
      out.lines.map { |line| JSON.parse(line) }
    end
    assert_equal [COUNT, COUNT], outcomes.map(&:size)
    outcomes.transpose.each { |original, replacement| yield original, replacement }
  rescue Gem::MissingSpecError
    limited "#{gem} is not installed"
  end

  def masks_in_ruby?
    system(RbConfig.ruby, "-rwebsocket/driver", "-e", "exit !WebSocket::Mask.method(:mask).source_location.nil?", err: File::NULL)
  end

  # Text that is not UTF-8 is refused earlier than the original does, whatever it finds behind that, and such reasons for
  # closing are not sent back.
  def test_websocket_driver
    limited "without its part in C for this Ruby the original masks the caller's Strings, frozen or not" if masks_in_ruby?

    each_outcome("websocket-driver", "0.8") do |original, replacement|
      next if replacement.inspect.match?(/Could not decode a text frame|close.*(?:"ff"|\[255\])/)

      assert_equal original, replacement, "seed #{original[0]}"
    end
  end

  # Text that is not UTF-8 is refused earlier, and with its own code; what ends within a mask or a length says so; messages have
  # a bound.
  def test_protocol_websocket
    each_outcome("protocol-websocket", "0.21") do |original, replacement|
      next if replacement.inspect.match?(/[iI]nvalid UTF-8|Could not read (?:mask|length)|Message is longer/)

      assert_equal original, replacement, "seed #{original[0]}"
    end
  end

  # Where the original does what RFC 9113 says: see what the exchanges avoid.
  def test_http_2
    each_outcome("http-2", "1.2.2") do |original, replacement|
      # Behind a push that it refuses the original reads no further until more arrives.
      next if original.inspect.match?(/error(?:=>|: ):refused_stream, :?stream(?:=>|: )2\b/)

      assert_equal original, replacement, "seed #{original[0]}"
    end
  end

  # The differences with pushes and GOAWAY, each of which the guide names: the original ends a connection for a push and a request of which
  # the later one has the smaller identifier, for a WINDOW_UPDATE of a stream that is closed, and for frames that are under way when a
  # stream is reset; it takes no windows and settings after its own GOAWAY; and it keeps DATA of a stream that was reset, which waits for the
  # connection's window. Behind a difference the ends read other chunks.
  def test_http_2_with_pushes_and_goaway
    named = /(?:id|Stream ID) (?:is )?smaller than previous|sent window update on idle stream|stream does not exist/
    each_outcome("http-2", "1.2.2", { "FREE" => "1" }) do |original, replacement|
      next if original == replacement

      at = original.zip(replacement).index { |one, other| one != other } || original.size
      next if taken_after_goaway?(original[0...at], original[at].to_s, replacement[at].to_s) ||
              buffered_amount_taken_out(original[at]) == buffered_amount_taken_out(replacement[at])

      # GOAWAY is sent before the error is raised.
      assert_match named, original[at, 4].join, "seed #{original[0]}: #{replacement[at]}"
    end
  end

  # Whether the replacement takes SETTINGS or a window where the original has closed the connection, for its own GOAWAY without an error.
  def taken_after_goaway?(before, original, replacement)
    own_end = replacement[/\A\W*([cs])\b/, 1]
    return false unless own_end && before.include?([own_end, :leaves, :no_error].inspect)
    return true if replacement.match?(/"settings_ack"|"sent", .*flags(?:=>|: )1.*:settings\b/)

    states = [original, replacement]
    states.all? { |state| state.start_with?('"[') } && states.map { |state| state.gsub(/\d+/, "") }.uniq.size == 1
  end

  # The state of a connection without its buffered amount.
  def buffered_amount_taken_out(state)
    state.to_s.sub(/\A(\W*[cs]\W+:\w+(?:, -?\d+){3}), \d+/, '\1')
  end

  # Errors of blocks that break RFC 7541 have other texts, which are also the debug data of GOAWAY.
  def test_protocol_http2
    each_outcome("protocol-http2", "0.22") do |original, replacement|
      next if original.inspect.match?(/Invalid string length|Index \d+ too large|Table size \d+ exceeds limit/)

      assert_equal original, replacement, "seed #{original[0]}"
    end
  end

  # Frames that go through methods of a program's own, and those that do not.
  def test_http_2_with_methods_of_its_own
    seed, file = Random.new_seed % 1_000_000, File.expand_path("drop_in/http_2_alike.rb", __dir__)
    plain, patched = %w[0 1].map do |given|
      env = { "ORIGINAL" => "0", "PATCHED" => given }
      out, err, status = Open3.capture3(env, RbConfig.ruby, file, seed.to_s, "300")
      assert status.success?, err
      out.lines
    end
    assert_equal 300, plain.size
    plain.zip(patched) { |one, other| assert_equal one, other, "from seed #{seed}" }
  end
end
