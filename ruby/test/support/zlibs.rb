# frozen_string_literal: true

require "zlib"

# Counts the deflaters and inflaters of zlib that are made.
module Zlibs
  @made = 0

  class << self
    attr_accessor :made

    # The number of those that the block made.
    def during
      before = made
      yield
      made - before
    end
  end

  def new(*)
    Zlibs.made += 1
    super
  end

  [Zlib::Deflate, Zlib::Inflate].each { |type| type.singleton_class.prepend(self) }
end
