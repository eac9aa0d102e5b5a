# frozen_string_literal: true

require_relative "test_helper"
require "wireloom"

class HPACKTest < Wireloom::TestCase
  Encoder = Wireloom::HPACK::Encoder
  Decoder = Wireloom::HPACK::Decoder

  def test_round_trips
    encoder = Encoder.new
    decoder = Decoder.new
    random = Random.new(seed = Random.new_seed)
    names = %w[:method :path x-a x-b content-type cookie] + Array.new(30) { |n| "x-name-#{n}" }
    200.times do
      headers = Array.new(random.rand(12)) { [names[random.rand(names.size)], random.rand(2).zero? ? "same" : random.bytes(random.rand(90)).b] }
      headers = headers.partition { |name, _| name.start_with?(":") }.flatten(1)
      decoded = decoder.decode(encoder.encode(headers))
      assert_equal headers.map { |pair| pair.map(&:b) }, decoded.map { |pair| pair.map(&:b) }, "seed #{seed}"
    end
    assert_equal encoder.to_a.map { |pair| pair.map(&:b) }, decoder.to_a.map { |pair| pair.map(&:b) }
  end

  def test_headers_may_be_a_hash_or_anything_that_lists_pairs
    encoder = Encoder.new(index: :never)
    blocks = [{ "a" => "b" }, [%w[a b]], { "a" => "b" }.each].map { |headers| encoder.encode(headers) }
    assert_equal 1, blocks.uniq.size
    assert_equal Encoding::BINARY, blocks.first.encoding
  end

  def test_what_is_no_header_changes_nothing
    encoder = Encoder.new
    decoder = Decoder.new
    [[%w[a b], 5], [["a"]], [["a", 5]], [[:a, "b"]]].each do |bad|
      assert_raises(TypeError) { encoder.encode(bad) }
    end
    assert_raises(NoMethodError) { encoder.encode(5) }
    assert_empty encoder.to_a
    assert_equal [%w[a b]], decoder.decode(encoder.encode([%w[a b]]))
  end

  def test_sizes
    encoder = Encoder.new
    decoder = Decoder.new
    [4096, 0, 100, 65_536].each do |size|
      decoder.table_size_max = size
      encoder.table_size_max = size
      3.times { assert_equal [%w[x-name value]], decoder.decode(encoder.encode([%w[x-name value]])) }
      assert_equal [4096, size].min, decoder.table_size
    end
    decoder.table_size_max = 0
    error = assert_raises(Wireloom::HPACK::Error) { decoder.decode("\x82".b) }
    assert_equal "dynamic table size update required", error.message
  end

  def test_wrong_blocks
    ["\x80", "\xff", "\xbe", "\x40\x05ab", "\x00\x81\xff\x00", "\x3f\xff\xff\x7f"].each do |block|
      assert_raises(Wireloom::HPACK::Error, block.inspect) { Decoder.new.decode(block.b) }
    end
    assert_raises(TypeError) { Decoder.new.decode(nil) }
    assert_raises(ArgumentError) { Encoder.new(huffman: :sometimes) }
    assert_raises(ArgumentError) { Encoder.new(index: :sometimes) }
  end

  def test_garbage_never_crashes
    random = Random.new(seed = Random.new_seed)
    decoder = Decoder.new
    valid = Encoder.new.encode([[":method", "GET"], ["x-long", "v" * 100], ["x-other", "w" * 50]])
    2000.times do
      block = random.rand(2).zero? ? random.bytes(random.rand(60)) : valid.dup.tap { |bytes| bytes.setbyte(random.rand(bytes.bytesize), random.rand(256)) }
      begin
        decoder.decode(block).each { |name, value| [name, value].each { |string| assert_equal Encoding::UTF_8, string.encoding, "seed #{seed}" } }
      rescue Wireloom::HPACK::Error
        decoder = Decoder.new
      end
    end
  end

  def test_copies
    encoder = Encoder.new
    encoder.encode([%w[x-a b]])
    copy = encoder.dup
    copy.encode([%w[x-c d]])
    assert_equal [1, 2], [encoder.to_a.size, copy.to_a.size]
  end
end
