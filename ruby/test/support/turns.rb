# frozen_string_literal: true

module Wireloom
  # Whether a call lets other threads run.
  module Turns
    # Whether a thread that computes all the time ran during one of twenty calls of the block. Each call begins with a new time slice,
    # 100 ms, which it does not use up; where the lock is released, the other thread may still wake up too late.
    def others_run?
      count = 0
      stop = false
      thread = Thread.new { count += 1 until stop }
      Array.new(20).any? do
        Thread.pass
        before = count
        yield
        count > before
      end
    ensure
      stop = true
      thread.join
    end

    # How often another thread ran while the block did; less often where other processes use up the processors.
    def turns
      count = 0
      stop = false
      thread = Thread.new { (count += 1) && sleep(0.0005) until stop }
      Thread.pass until count > 3
      before = count
      yield
      count - before
    ensure
      stop = true
      thread.join
    end
  end
end
