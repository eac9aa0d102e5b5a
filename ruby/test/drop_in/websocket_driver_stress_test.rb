# frozen_string_literal: true
# GC.stress: short

require_relative "websocket_driver_helper"

# One pass over what the extension does, few enough objects to collect garbage at each of them.
class WebSocketDriverStressTest < Wireloom::TestCase
  include WebSocketDriverHelper

  def test_frames_both_ways
    driver = open_hybi(masking: true)
    heard = []
    driver.on(:message) { |event| heard << event.data }
    input = frame(0x81, "", mask: true) + frame(0x81, "h\u00E9" * 40, mask: true) + frame(0x02, "a" * 300) + frame(0x89, "p") +
            frame(0x80, "") + frame(0x88, "\x03\xE8bye")
    parse_in_steps(driver, input, 50)
    assert_equal ["", "h\u00E9" * 40, OLD ? [97] * 300 : "a" * 300], heard
    assert_equal [1000, "bye"], close_event
  end

  # The core's permessage-deflate, both ways through one codec, as short and as long messages.
  def test_compressed_messages
    gap_of_the_original
    driver = open_hybi
    codec = driver.instance_variable_get(:@codec)
    codec.extend(4)
    codec.deflate(15, true, 15, true)
    texts = ["h\u00E9" * 20, "", "h\u00E9" * 3000, "a"]
    texts.each { |text| driver.parse(codec.deflated_frame(1, text, "abcd")) }
    assert_equal texts, messages
    driver.parse(frame(0xC1, "\xFF\xFF", mask: true))
    assert_equal 1010, close_event[0]
  end

  def test_listeners_that_raise
    driver = open_hybi
    driver.on(:message) { raise "an error" }
    assert_raises(RuntimeError) { driver.parse(frame(0x81, "a") + frame(0x81, "b")) }
    assert_raises(RuntimeError) { driver.parse("") }
    assert_equal %w[a b], messages
  end
end
