# frozen_string_literal: true

require_relative "test_helper"
require "open3"
require "rbconfig"

# Every public method has a comment for YARD, with its parameters, and a signature for RBS.
class DocumentationTest < Wireloom::TestCase
  ROOT = File.expand_path("..", __dir__)
  # The public methods of an API, each in a process of its own: lines of class, kind, method, file, line and parameters.
  REFLECTION = <<~'RUBY'
    require ARGV[0]
    ARGV[2..].each { |feature| require feature }
    lib = File.expand_path("lib")
    seen = []
    visit = lambda do |mod|
      next if seen.include?(mod)

      seen << mod
      [[mod, "instance"], [mod.singleton_class, "singleton"]].each do |holder, kind|
        names = holder.public_instance_methods(false)
        names << :initialize if kind == "instance" && holder.private_instance_methods(false).include?(:initialize)
        names.each do |name|
          method = holder.instance_method(name)
          file, line = method.source_location
          next if file && !file.start_with?(lib)
          next if file.nil? && (mod < Struct || mod < Exception || name == :initialize)

          parameters = method.parameters.filter_map { |type, parameter| parameter unless type == :block }
          puts [mod, kind, name, method.original_name, file || "native", line || 0, parameters.join(",")].join("\t")
        end
      end
      mod.constants(false).sort.each do |constant|
        next if mod.autoload?(constant)

        value = mod.const_get(constant)
        visit.call(value) if value.is_a?(Module) && value.name&.start_with?(mod.name)
      end
    end
    visit.call(Object.const_get(ARGV[1]))
  RUBY
  APIS = [
    ["wireloom", "Wireloom"], ["wireloom/drop_in/websocket_driver", "WebSocket"], ["wireloom/drop_in/http_2", "HTTP2"],
    ["wireloom/drop_in/protocol_websocket", "Protocol::WebSocket"],
    ["wireloom/drop_in/protocol_http2", "Protocol::HPACK"]
  ].freeze
  # Native parts that only the gem's own Ruby code calls.
  INTERNAL = /\AWireloom::(DriverCodec|ProtocolWebSocket|ProtocolHTTP2|HPACK::Context|Deflater|Inflater|DropIn::HTTP2|DropIn)\b|\AWireloom\z/

  Entry = Struct.new(:owner, :kind, :name, :original_name, :file, :line, :parameters) do
    def native?
      file == "native"
    end

    def to_s
      "#{owner}#{kind == "instance" ? "#" : "."}#{name}"
    end
  end

  def self.entries
    @entries ||= APIS.flat_map do |feature, namespace|
      out, err, status = Open3.capture3(RbConfig.ruby, "-W0", "-Ilib", "-e", REFLECTION, feature, namespace, chdir: ROOT)
      raise err unless status.success?

      out.lines(chomp: true).map do |line|
        *fields, parameters = line.split("\t", -1)
        Entry.new(*fields, parameters.split(","))
      end
    end.reject { |entry| INTERNAL.match?(entry.owner) }
  end

  def comment(entry)
    lines = (@lines ||= {})[entry.file] ||= File.readlines(entry.file)
    lines[0...(entry.line.to_i - 1)].reverse.take_while { |line| line.match?(/^\s*#/) }.reverse.join
  end

  def test_methods_have_comments
    entries = self.class.entries.reject(&:native?)
    assert_operator entries.size, :>, 200
    without = entries.select { |entry| entry.name == entry.original_name && comment(entry).empty? && !generated?(entry) }
    assert_empty without.map(&:to_s)
  end

  def test_comments_name_all_parameters
    missing = self.class.entries.reject(&:native?).flat_map do |entry|
      text = comment(entry)
      next [] if text.empty? || text.match?(/@param \(see|@api private|attr_/)

      entry.parameters.reject { |name| name.empty? || %w[* ** &].include?(name) || text.match?(/@(?:param|option) #{name}\b/) }
           .map { |name| "#{entry}: #{name}" }
    end
    assert_empty missing
  end

  def test_native_methods_have_comments
    sources = Dir[File.join(ROOT, "lib/**/*.rb")].map { |path| File.read(path) }.join
    documented = sources.scan(/@!method (?:self\.)?(\S+?)(?:\(|$)/).flatten
    native = self.class.entries.select(&:native?)
    assert_operator native.size, :>, 50
    assert_empty native.map(&:name).uniq - documented - ["provoke"]
  end

  # Methods of the names and classes that sig/ and sig_drop_in/ have, by a reader of the little that these files use.
  def signatures
    found = Hash.new { |hash, owner| hash[owner] = [] }
    Dir[File.join(ROOT, "{sig,sig_drop_in}/*.rbs")].each do |path|
      nesting = []
      File.foreach(path) do |line|
        case line
        when /^\s*(?:module|class|interface) ([\w:]+)/ then nesting << Regexp.last_match(1)
        when /^\s*end\s*$/ then nesting.pop
        when /^\s*def (self\.)?(\S+?): / then found[nesting.join("::")] << [Regexp.last_match(1) ? "singleton" : "instance", Regexp.last_match(2)]
        when /^\s*alias (\S+) / then found[nesting.join("::")] << ["instance", Regexp.last_match(1)]
        when /^\s*attr_(reader|writer|accessor) (\w+):/
          kind, name = Regexp.last_match(1), Regexp.last_match(2)
          found[nesting.join("::")] << ["instance", name] unless kind == "writer"
          found[nesting.join("::")] << ["instance", "#{name}="] unless kind == "reader"
        end
      end
    end
    found
  end

  def test_methods_have_signatures
    signatures = self.signatures
    missing = self.class.entries.reject { |entry| signatures[entry.owner].include?([entry.kind, entry.name]) || private_api?(entry) }
    assert_empty missing.map(&:to_s)
  end

  private

  # Defined by `class_eval` from a list, which has a comment.
  def generated?(entry)
    entry.owner == "WebSocket::Driver::Server"
  end

  def private_api?(entry)
    %w[inherited method_added include prepend prepended inspect initialize_copy].include?(entry.name) ||
      (!entry.native? && comment(entry).include?("@api private"))
  end
end
