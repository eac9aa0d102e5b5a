# frozen_string_literal: true

module Wireloom
  # The known sources of async-http's methods and of the streams it writes to. Where all methods equal these, native code skips the calls
  # between a frame and the buffer of the stream. With any other release of these gems, and for a class that overrides a method, it makes
  # the calls.
  module ProtocolHTTP2
    # The sources of methods: without comments, and with one space for any number.
    SOURCES = {
      "Async::HTTP::Protocol::HTTP2::Connection" => {
        synchronize: "def synchronize(&block) @write_frame_guard.acquire(&block) end",
        write_frame: "def write_frame(frame) Task.current.defer_stop{super} end",
        write_frames: "def write_frames Task.current.defer_stop{super} end"
      },
      "Async::Semaphore" => {
        acquire: "def acquire wait @count += 1 return unless block_given? begin return yield ensure self.release end end",
        wait: "def wait return unless blocking? @waiting.stack(FiberNode.new(Fiber.current)) do Fiber.scheduler.transfer while blocking? end end",
        blocking?: "def blocking? @count >= @limit end"
      },
      "IO::Stream::Writable" => {
        write: "def write(string, flush: false) @writing.synchronize do @write_buffer << string " \
               "flush |= (@write_buffer.bytesize >= @minimum_write_size) if flush self.drain(@write_buffer) end end return string.bytesize end",
        flush: "def flush return if @write_buffer.empty? @writing.synchronize do self.drain(@write_buffer) end end"
      },
      "IO::Stream::Readable" => {
        read: "def read(size = nil, buffer = nil) if size == 0 if buffer buffer.clear buffer.force_encoding(Encoding::BINARY) return buffer else " \
              "return String.new(encoding: Encoding::BINARY) end end if size until @finished or @read_buffer.bytesize >= size " \
              "read_size = size - @read_buffer.bytesize fill_read_buffer(read_size > @minimum_read_size ? read_size : @minimum_read_size) end " \
              "else until @finished fill_read_buffer end if buffer buffer.replace(@read_buffer) @read_buffer.clear else buffer = @read_buffer " \
              "@read_buffer = StringBuffer.new end return buffer end return consume_read_buffer(size, buffer) end",
        consume_read_buffer: "def consume_read_buffer(size = nil, buffer = nil) if @finished && @read_buffer.empty? if buffer buffer.clear " \
                             "buffer.force_encoding(Encoding::BINARY) end return nil end result = nil if size.nil? or size >= @read_buffer.bytesize " \
                             "if buffer buffer.clear buffer << @read_buffer result = buffer else result = @read_buffer end " \
                             "@read_buffer = StringBuffer.new else @read_buffer.freeze if buffer " \
                             "buffer.replace(@read_buffer.byteslice(0, size)) result = buffer else result = @read_buffer.byteslice(0, size) end " \
                             "@read_buffer = @read_buffer.byteslice(size, @read_buffer.bytesize) end return result end"
      },
      "Protocol::HTTP::Body::Buffered" => {
        read: "def read return nil unless @chunks if chunk = @chunks[@index] @index += 1 return chunk.dup end end",
        close: "def close(error = nil) @index = @chunks.length return nil end"
      },
      "Protocol::HTTP::Headers::Merged" => {
        each: "def each(&block) return to_enum unless block_given? @all.each do |headers| " \
              "headers.each do |key, value| yield key.to_s.downcase, value.to_s end end end"
      }
    }.each_value(&:freeze).freeze
    private_constant :SOURCES

    # Before `Async::HTTP::Protocol::HTTP2::Request`.
    module Response
      # A body that is in memory leaves together with its headers.
      def send_response(response)
        return super unless response && ProtocolHTTP2.hold(@stream, response.body)

        begin
          super
        ensure
          ProtocolHTTP2.release(@stream)
        end
      end
    end

    # Notices async-http.
    module Inherited
      def inherited(stream_class)
        super
        request = "Async::HTTP::Protocol::HTTP2::Request"
        Object.const_get(request).prepend(Response) if Object.const_defined?(request) && !Object.const_get(request).include?(Response)
      end
    end
    private_constant :Response, :Inherited

    class << self
      # @api private
      def in_task?
        !::Async::Task.current?.nil?
      end

      # @api private
      def flush(framer)
        ::Async::Task.current.defer_stop { framer.flush }
      end

      # The rest are questions about classes that native code asks once.

      # @api private
      def writes_async?(connection_class)
        known?(connection_class, "Async::HTTP::Protocol::HTTP2::Connection")
      end

      # @api private
      def guard?(mod)
        mod.name == "Async::Semaphore" && known?(mod, mod.name)
      end

      # @api private
      def buffered?(mod)
        mod.name == "IO::Stream::Buffered" && known?(mod, "IO::Stream::Writable")
      end

      # @api private
      def read_ahead?(mod)
        mod.name == "IO::Stream::Buffered" && known?(mod, "IO::Stream::Readable")
      end

      # @api private
      def in_memory?(mod)
        mod.name == "Protocol::HTTP::Body::Buffered" && known?(mod, mod.name)
      end

      # Of any class that reads as StringIO does.
      #
      # @api private
      def memory?(mod)
        own = !mod.singleton_class? && %i[read pos pos= string closed_read?].map { |name| mod.instance_method(name) }
                                           .all? { |method| method.owner == StringIO && method.source_location.nil? }
        watch(mod, StringIO) if own
        own
      rescue NameError
        false
      end

      # @api private
      def merged?(mod)
        mod.name == "Protocol::HTTP::Headers::Merged" && known?(mod, mod.name)
      end

      private

      # Whether the methods of `mod` are those of the module called `name`, and known. Later changes of either are noticed.
      def known?(mod, name)
        owner = Object.const_get(name)
        known = SOURCES[name].all? do |method_name, source|
          method = mod.instance_method(method_name)
          method.owner == owner && source(method) == source
        end
        watch(mod, owner) if known
        known
      rescue NameError, SystemCallError
        false
      end

      def watch(mod, owner)
        mod.ancestors.take_while { |part| part != owner }.push(owner).each { |part| part.extend(Watch) }
      end

      # A method as its file has it.
      def source(method)
        path, line = method.source_location
        first, *rest = File.readlines(path).drop(line - 1)
        indent = first[/\A\s*/]
        rest = rest.take_while { |text| text.rstrip != "#{indent}end" }
        [first, *rest, "end"].map(&:strip).reject { |text| text.empty? || text.start_with?("#") }.join(" ")
      end
    end

    ::Protocol::HTTP2::Stream.extend(Inherited)
  end
end
