# shellcheck shell=bash
# The step setup: finds out what is missing, asks once, and installs it.

# wants STEP…: whether this run has one of the steps. Alone, setup prepares for all.
wants() {
    local step
    [ "${wanted[*]}" != setup ] || return 0
    for step in "$@"; do [[ " ${wanted[*]} " != *" $step "* ]] || return 0; done
    return 1
}

# The parts of the plan: arguments of rustup, one command a line; Debian packages; the same, for single peers of interop.
rustup_commands() {
    cargo fmt --version >/dev/null 2>&1 || echo "component add rustfmt"
    cargo clippy --version >/dev/null 2>&1 || echo "component add clippy"
    local target targets=(wasm32-unknown-unknown)
    ! wants portable || targets+=("${portable_targets[@]}" "${checked_targets[@]}")
    for target in "${targets[@]}"; do
        has_target "$target" || echo "target add $target"
    done
    # On few cores a run of all steps has no time for the steps that need these two.
    if [ $is_full = 0 ] && wants msrv; then
        has_toolchain "$msrv" || echo "toolchain install $msrv --profile minimal"
    fi
    if [ $is_full = 0 ] && wants fuzz miri sanitizers newest; then
        has_toolchain "$nightly" src && cargo "+$nightly" miri --version >/dev/null 2>&1 \
            || echo "toolchain install $nightly --profile minimal --component miri --component rust-src"
    fi
    if [ -n "$counts_rust" ] && [ "$(uname -sm)" = "Linux x86_64" ]; then
        local parts=(x86_64-unknown-linux-musl)
        has_toolchain "$counts_rust" "${parts[@]}" \
            || echo "toolchain install $counts_rust --profile minimal --target ${parts[*]}"
        [[ $(rustc --version) != "rustc $counts_rust "* ]] || has_target "${parts[0]}" || echo "target add ${parts[0]}"
    fi
}

debian_packages() {
    have apt-get && have dpkg-query || return 0
    have cc || echo build-essential
    # The page, and peers of the step interop.
    have node || echo nodejs
    have npm || echo npm
    have curl || echo curl
    have h2load || echo nghttp2-client
    have nghttpd || echo nghttp2-server
    # An engine of the hub; the tests start servers of their own.
    have redis-server || echo redis-server
    # libwireloom and its tests.
    have pkg-config || echo pkg-config
    have abidiff || echo abigail-tools
    [ -e /usr/include/libwebsockets.h ] || echo libwebsockets-dev
    [ -e /usr/include/wslay/wslay.h ] || echo libwslay-dev
    have csc || echo chicken-bin
    [ -f /usr/include/chicken/chicken.h ] || echo libchicken-dev
    have python3 && python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv
    have openssl || echo openssl
    if [ -d bench ]; then
        [ "$(uname -m)" != x86_64 ] || have valgrind || echo valgrind
    fi
    local package
    if wants portable && [ "$(uname -m)" = x86_64 ]; then
        for package in "${portable_packages[@]}"; do has_package "$package" || echo "$package"; done
    fi
    if [ -d ruby ]; then
        # A Ruby from elsewhere is the user's choice and builds the gem as well.
        local ruby=(libclang-dev)
        [ -n "$(command -v ruby | grep -v '^/usr/bin/')" ] \
            || ruby+=(ruby ruby-dev ruby-minitest rake ruby-websocket-driver ruby-http-2
                ruby-faye-websocket ruby-actioncable ruby-async puma)
        ! wants newest || [ "$(id -u)" != 0 ] || ruby+=(mmdebstrap)
        for package in "${ruby[@]}"; do has_package "$package" || echo "$package"; done
    fi
}

# Some Debian derivatives lack a package of this name: that must not fail the others.
programs() {
    have apt-get || return 0
    have chromium || have chromium-browser || have google-chrome || echo chromium
    have firefox-esr || have firefox || echo firefox-esr
    have javac || echo default-jdk-headless
    # Debian starts them as services; the step proxies starts its own.
    local proxy
    for proxy in nginx haproxy caddy; do
        PATH=$PATH:/usr/sbin have "$proxy" || echo "${proxy/nginx/nginx-light}"
    done
}

# Asks whether to install, once.
may_install() {
    if [ "$consent" = ask ]; then
        consent=no
        if [ -t 0 ]; then
            printf '   Install all of this? [Y/n] ' >&3
            local answer
            read -r answer
            case $answer in '' | y | Y | yes) consent=yes ;; esac
        fi
    fi
    [ "$consent" = yes ]
}

# Installs Debian packages where that is possible. The lists of packages are fetched once.
lists=old
debian() {
    local as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo -n)
    if ${as_root[@]+"${as_root[@]}"} true 2>/dev/null; then
        [ $lists = new ] || ${as_root[@]+"${as_root[@]}"} apt-get update -q
        lists=new
        ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@" \
            || say "apt could not install: $* (the steps that need them are skipped)"
    else
        say "apt needs root, or sudo without a password, to install: $* (the steps that need them are skipped)"
    fi
}

step_setup() {
    have cargo || { say "cargo is missing: install Rust from https://rustup.rs first"; return 1; }
    local commands=() packages=() single=() tools=() line failed=0
    mapfile -t commands < <(rustup_commands)
    mapfile -t packages < <(debian_packages)
    mapfile -t single < <(programs)
    local go_packages=()
    if [ -d crates/hub ] && have go && ! have nats-server; then
        go_packages+=("github.com/nats-io/nats-server/v2@$nats_server")
    fi
    if [ -x conformance/h2spec/run ] && have go && ! have h2spec; then
        go_packages+=("github.com/summerwind/h2spec/cmd/h2spec@$h2spec")
    fi
    if [ -d go ] && have go && ! have staticcheck; then
        go_packages+=("honnef.co/go/tools/cmd/staticcheck@$staticcheck")
    fi
    mapfile -t tools < <(missing_tools)

    for line in ${commands[@]+"${commands[@]}"}; do say "missing: rustup $line"; done
    [ ${#packages[@]} = 0 ] || say "missing: apt-get install ${packages[*]}"
    [ ${#single[@]} = 0 ] || say "missing: apt-get install ${single[*]}"
    for line in ${go_packages[@]+"${go_packages[@]}"}; do say "missing: go install $line"; done
    for line in ${tools[@]+"${tools[@]}"}; do say "missing: cargo install --locked $line (by the step that needs it)"; done
    if [ ${#commands[@]} = 0 ] && [ ${#packages[@]} = 0 ] && [ ${#single[@]} = 0 ] && [ ${#go_packages[@]} = 0 ] \
        && [ ${#tools[@]} = 0 ]; then
        return 0
    fi
    may_install || { say "nothing is installed: ./test --yes installs it; the steps that need it are skipped"; return 0; }

    for line in ${commands[@]+"${commands[@]}"}; do
        have rustup || { say "there is no rustup to run: rustup $line"; continue; }
        # shellcheck disable=SC2086 # the words of one command
        rustup $line || { say "failed: rustup $line"; [[ $line != component* ]] || failed=1; }
    done
    [ ${#packages[@]} = 0 ] || debian "${packages[@]}"
    for line in ${single[@]+"${single[@]}"}; do debian "$line"; done
    have cc || { say "no C compiler: Rust needs one to link"; failed=1; }
    for line in ${go_packages[@]+"${go_packages[@]}"}; do
        go install "$line" || say "go could not install $line; what needs it is skipped"
    done
    return $failed
}
