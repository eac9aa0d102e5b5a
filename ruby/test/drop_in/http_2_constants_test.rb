# frozen_string_literal: true

require_relative "../test_helper"
original_or_drop_in "http_2", "http/2"
require "open3"
require "rbconfig"

# Constants and files of the original that a program may use.
class HTTP2ConstantsTest < Wireloom::TestCase
  def setup
    limited "http-2 is older than 1.2" if Gem::Version.new(HTTP2::VERSION) < Gem::Version.new("1.2")
  end

  def test_base64
    base64 = defined?(::Base64) ? ::Base64 : HTTP2::Base64
    assert_equal ["AQL/", "\x01\x02\xFF".b], [base64.strict_encode64("\x01\x02\xFF"), base64.strict_decode64("AQL/")]
    assert_equal ["-_8", "\xFB\xFF".b], [base64.urlsafe_encode64("\xFB\xFF", padding: false), base64.urlsafe_decode64("-_8")]
    assert_equal ["YQ==\n", "a"], [base64.encode64("a"), base64.decode64("YQ==\n")]
  end

  def test_huffman
    huffman = HTTP2::Header::Huffman
    assert_equal [257, [0x1ff8, 13], [0x0, 5], [0x3fffffff, 30]], [huffman::CODES.size, huffman::CODES[0], huffman::CODES[48], huffman::CODES[256]]
    assert_equal %w[1111111111000 00000], huffman::ENCODE_TABLE.values_at(0, 48)
    assert_equal 4, huffman::BITS_AT_ONCE
  end

  # Runs in processes of its own, so that both are loaded whole.
  LIST = <<~'RUBY'
    def list(place, seen = {})
      return [] if seen[place]

      seen[place] = true
      place.constants(false).reject { |name| place.autoload?(name) }.flat_map do |name|
        value = place.const_get(name)
        ["#{place}::#{name}"] + (value.is_a?(Module) && value.name.to_s.start_with?("HTTP2") ? list(value, seen) : [])
      end
    end
    puts list(HTTP2).uniq.sort
  RUBY

  def constants(feature)
    lib = File.expand_path("../../lib", __dir__)
    out, err, status = Open3.capture3(RbConfig.ruby, "-W0", "-I#{lib}", "-e", "require #{feature.inspect}\n#{LIST}")
    limited "http-2 is not installed" unless status.success? || feature.start_with?("wireloom")
    assert status.success?, err
    out.split
  end

  def test_every_constant_exists
    original = constants("http/2")
    limited "http-2 is older than 1.2" if original.include?("HTTP2::Buffer")
    missing = original - constants("wireloom/drop_in/http_2")
    # By autoload, from the original's file.
    missing -= %w[HTTP2::Header::Huffman::MACHINE HTTP2::Header::Huffman::MAX_FINAL_STATE]
    assert_empty missing
  end

  def test_the_tables_of_the_state_machine
    begin
      machine = HTTP2::Header::Huffman::MACHINE
    rescue LoadError
      limited "http-2 is not installed"
    end
    assert_equal [256, 16], [machine.size > 255 ? 256 : machine.size, machine.first.size]
  end
end
