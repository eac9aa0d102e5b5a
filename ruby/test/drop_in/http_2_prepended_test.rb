# frozen_string_literal: true

require_relative "../support/http_2"

# Modules that get their methods after a class was given them, and modules of modules. Each changes the classes for good, so this
# file runs by itself, in this order.
class HTTP2PrependedTest < HTTP2TestCase
  i_suck_and_my_tests_are_order_dependent!

  def test_1_modules_without_such_methods_change_nothing
    gap = ORIGINAL || Wireloom::DropIn::HTTP2::Watch.overridden?
    HTTP2::Connection.prepend(Module.new { def unrelated = nil })
    HTTP2::Stream.include(Comparable)
    refute Wireloom::DropIn::HTTP2::Watch.overridden? unless ORIGINAL
    refute gap unless ORIGINAL
  end

  def test_2_a_prepended_module_gets_its_method_later
    kept = []
    mod = Module.new
    HTTP2::Client.prepend(mod)
    client, = connected_client
    mod.define_method(:send) { |frame| (kept << frame[:type]) && super(frame) }
    client.ping("12345678")
    assert_equal [:ping], kept
  end

  def test_3_a_prepended_module_gets_another_module_later
    kept = []
    inner = Module.new
    mod = Module.new
    HTTP2::Stream.prepend(mod)
    client, = connected_client
    stream = client.new_stream
    mod.prepend(inner)
    inner.define_method(:send) { |frame| (kept << frame[:type]) && super(frame) }
    client.new_stream.headers(REQUEST, end_stream: true)
    stream.headers(REQUEST, end_stream: true)
    assert_equal %i[headers headers], kept
  end
end
