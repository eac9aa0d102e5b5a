# frozen_string_literal: true

# `ruby -Ilib -Itest test/NAME_test.rb` runs one file. With ORIGINAL=1 in the environment the tests of the drop-ins test the
# originals instead, as far as they are installed: each file begins with `original_or_drop_in "websocket_driver", "websocket/driver"`.
$LOAD_PATH.unshift(File.expand_path("../lib", __dir__), __dir__)

ORIGINAL = ENV["ORIGINAL"] == "1"
Warning[:experimental] = false # Ractors

require "minitest/autorun"

# Requires the original in a run that tests originals, else the drop-in. Exits with a message when the original is missing.
def original_or_drop_in(name, original)
  return require("wireloom/drop_in/#{name}") unless ORIGINAL

  begin
    require original
  rescue LoadError
    leave("#{original} is not installed")
  end
end

# Requires the libraries that a test needs, or ends the run with the name of the missing one.
def require_needed(*features)
  features.each { |feature| require feature }
rescue LoadError => e
  leave(e.message.lines.first.chomp)
end

# Ends the process before a test runs.
def leave(reason)
  puts "limited: #{reason}"
  $stdout.flush
  exit!(0)
end

module Wireloom
  # Base of all tests.
  class TestCase < Minitest::Test
    # GC_STRESS=1 runs every test while each allocation collects garbage; GC_COMPACT=1 moves objects whenever it does.
    def run
      GC.auto_compact = true if ENV["GC_COMPACT"] == "1" && GC.respond_to?(:auto_compact=)
      GC.stress = true if ENV["GC_STRESS"] == "1"
      super
    ensure
      GC.stress = false
    end

    # Skips a test for want of what can be installed, which fails a run of ./test with `--strict`.
    def lacks(reason)
      puts "", "skipped: #{reason}"
      skip reason
    end

    # Skips a test for want of a gem, or a release of it, that Debian does not have for every Ruby: a note. `./test newest` has them.
    def limited(reason)
      puts "", "limited: #{reason}"
      skip reason
    end

    # Skips a test of memory under the address sanitizer (test/asan), which has its own allocator.
    def needs_the_usual_allocator
      skip "not under the address sanitizer" if ENV["LD_PRELOAD"]&.include?("libaddress")
    end

    # Skips a test of Ractors where garbage is collected all the time on Ruby 3.3 and 3.4: of programs of Ruby code alone, four Ractors that
    # collect garbage, five of 119 never ended on 3.3.8 and two of 44 on 3.4.11.
    def needs_sound_ractors
      return unless RUBY_VERSION.match?(/\A3\.[34]\./) && (ENV["GC_COMPACT"] == "1" || ENV["GC_STRESS"] == "1")

      skip "Ractors of Ruby 3.3 and 3.4 may hang while garbage is collected"
    end

    # Skips what only the replacement does (a gap of the original that it closes).
    def gap_of_the_original
      skip "a gap of the original" if ORIGINAL
    end

    # Runs the block in a child process and returns its result: changes of classes in it would send the other tests through other code
    # paths.
    def in_child
      skip "no fork here" unless Process.respond_to?(:fork)
      reader, writer = IO.pipe
      child = fork do
        writer.write(Marshal.dump(yield))
      rescue Exception => e
        warn e.full_message
      ensure
        exit!
      end
      writer.close
      Marshal.load(reader.read)
    ensure
      Process.wait(child) if child
    end
  end
end
