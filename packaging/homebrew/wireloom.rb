# The formula of a tap. packaging/pack fills in the version and the checksums of the archives that were built.
class Wireloom < Formula
  desc "WebSocket and HTTP/2 from the shell: serve, connect, load, inspect"
  homepage "@repository@"
  version "@version@"
  license any_of: ["MIT", "Apache-2.0"]

  on_linux do
    on_intel do
      url "@repository@/releases/download/v@version@/wireloom-@version@-x86_64-unknown-linux-musl.tar.gz"
      sha256 "@x86_64-unknown-linux-musl@"
    end
    on_arm do
      url "@repository@/releases/download/v@version@/wireloom-@version@-aarch64-unknown-linux-musl.tar.gz"
      sha256 "@aarch64-unknown-linux-musl@"
    end
  end

  # There is no archive for macOS: cargo builds it.
  on_macos do
    url "@repository@/archive/refs/tags/v@version@.tar.gz"
    depends_on "rust" => :build
  end

  def install
    if OS.mac?
      system "cargo", "install", "--profile", "dist", *std_cargo_args(path: "crates/cli")
      generate_completions_from_executable(bin/"wireloom", "completions")
      system bin/"wireloom", "man", "--dir", man1
    else
      bin.install "wireloom"
      man1.install Dir["man/*.1"]
      bash_completion.install "completions/wireloom.bash" => "wireloom"
      zsh_completion.install "completions/wireloom.zsh" => "_wireloom"
      fish_completion.install "completions/wireloom.fish"
    end
  end

  service do
    run [opt_bin/"wireloom", "serve"]
    keep_alive true
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/wireloom --version")
  end
end
