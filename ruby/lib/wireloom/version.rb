# frozen_string_literal: true

module Wireloom
  VERSION = "0.1.0"
end
