# frozen_string_literal: true

module Bench
  # WebSocket frames to read, as they come off a socket.
  module Traffic
    KEY = "\x11\x22\x83\x44".b.freeze
    OPCODES = { text: 1, binary: 2 }.freeze

    module_function

    # One frame with all of the payload.
    def frame(type, payload, mask: false)
      masked = mask ? 0x80 : 0
      first = 0x80 | OPCODES.fetch(type)
      header =
        if payload.bytesize < 126 then [first, masked | payload.bytesize].pack("CC")
        elsif payload.bytesize < 65_536 then [first, masked | 126, payload.bytesize].pack("CCS>")
        else [first, masked | 127, payload.bytesize].pack("CCQ>")
        end
      mask ? header << KEY << masked(payload) : header << payload.b
    end

    def masked(payload)
      key = KEY.unpack1("N")
      padding = -payload.bytesize % 4
      words = (payload.b << "\0" * padding).unpack("N*").map! { |word| word ^ key }
      words.pack("N*").byteslice(0, payload.bytesize)
    end

    # A masked text frame of this number of bytes, which repeats +unit+.
    def text(bytes, unit)
      block = masked(unit * (16_384 / unit.bytesize))
      raise "the unit does not fit" unless (bytes % block.bytesize).zero?

      header = bytes < 65_536 ? [0x81, 0xFE, bytes].pack("CCS>") : [0x81, 0xFF, bytes].pack("CCQ>")
      header << KEY << block * (bytes / block.bytesize)
    end

    # The wire in reads of +bytes+ each.
    def chunks(wire, bytes)
      (0...wire.bytesize).step(bytes).map { |at| wire.byteslice(at, bytes) }
    end

    # Binary events of about 5 KB: those of the file that FIREHOSE names in the environment, each behind its length in four bytes, the
    # lowest first; else random ones of the same lengths.
    def events
      path = ENV["FIREHOSE"]
      return split(File.binread(path)) if path

      random = Random.new(1)
      Array.new(150) { random.bytes(2_000 + random.rand(7_000)) }
    end

    # The name of the data.
    def source
      ENV["FIREHOSE"] ? "recorded events (FIREHOSE)" : "made-up events from a fixed seed"
    end

    # Each event behind its length.
    def split(bytes)
      events = []
      at = 0
      while at < bytes.bytesize
        length = bytes.unpack1("V", offset: at)
        events << bytes.byteslice(at + 4, length)
        at += 4 + length
      end
      events
    end
  end
end
