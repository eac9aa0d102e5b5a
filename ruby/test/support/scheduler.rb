# frozen_string_literal: true

require "fiber"
require "io/wait"

# A fiber scheduler (Fiber::Scheduler) on IO.select, for one thread.
class Scheduler
  # Runs the blocks as fibers until all have ended.
  def self.run(*blocks)
    thread = Thread.new do
      Fiber.set_scheduler(new)
      blocks.each { |block| Fiber.schedule(&block) }
    end
    thread.join(30) or raise "the fibers do not end"
  end

  # How often a fiber waited for a stream.
  class << self
    attr_accessor :waits
  end
  self.waits = 0

  def initialize
    @readable = {}
    @writable = {}
    @sleeping = {}
    @blocked = 0
    @ready = Thread::Queue.new
    @wakeup_reader, @wakeup_writer = IO.pipe
  end

  def fiber(&block)
    Fiber.new(blocking: false, &block).tap(&:resume)
  end

  def io_wait(io, events, timeout)
    Scheduler.waits += 1
    fiber = Fiber.current
    @readable[io] = fiber if events.anybits?(IO::READABLE)
    @writable[io] = fiber if events.anybits?(IO::WRITABLE)
    @sleeping[fiber] = now + timeout if timeout
    Fiber.yield
    events
  ensure
    @readable.delete(io)
    @writable.delete(io)
    @sleeping.delete(fiber)
  end

  def kernel_sleep(duration = nil)
    block(:sleep, duration)
    true
  end

  def block(_blocker, timeout = nil)
    fiber = Fiber.current
    @sleeping[fiber] = now + timeout if timeout
    @blocked += 1
    Fiber.yield
  ensure
    @blocked -= 1
    @sleeping.delete(fiber)
  end

  def unblock(_blocker, fiber)
    @ready << fiber
    @wakeup_writer.write_nonblock(".", exception: false)
  end

  def close
    run
  ensure
    [@wakeup_reader, @wakeup_writer].each(&:close)
  end

  def run
    step until @readable.empty? && @writable.empty? && @sleeping.empty? && @ready.empty? && @blocked.zero?
  end

  private

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  def step
    earliest = @sleeping.values.min
    timeout = @ready.empty? ? (earliest && [earliest - now, 0].max) : 0
    readable, writable = IO.select([*@readable.keys, @wakeup_reader], @writable.keys, nil, timeout)
    @wakeup_reader.read_nonblock(1024, exception: false) if readable&.delete(@wakeup_reader)
    fibers = (readable || []).map { |io| @readable[io] } + (writable || []).map { |io| @writable[io] }
    fibers.concat(@sleeping.select { |_, at| at <= now }.keys)
    fibers << @ready.pop until @ready.empty?
    fibers.uniq.each { |fiber| fiber.resume if fiber&.alive? }
  end
end
