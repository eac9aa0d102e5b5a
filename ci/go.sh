# shellcheck shell=bash
# The Go module.

step_go() {
    have go || { skip "Go is not installed: apt-get install golang-go, or https://go.dev/dl"; return; }
    # go.mod names the oldest Go; an older command downloads a newer one, unless that is switched off.
    (cd go && go list . >/dev/null) || { skip "$(go version) cannot build the module: https://go.dev/dl"; return; }
    # The fuzz targets replay their seeds against the Rust core.
    cargo build "${workspace[@]}" --quiet --example receive || return
    local formatted
    formatted=$(cd go && gofmt -l . bench) && [ -z "$formatted" ] || { echo "gofmt changes: $formatted"; return 1; }
    (cd go && CGO_ENABLED=0 WIRELOOM_RECEIVE=$target/debug/examples/receive go test ./...) || return
    # Without the kernels in assembly.
    (cd go && go vet -tags purego . && go test -tags purego -run 'Agrees|TextAt|Vectors(Mask|UTF8|Receive)' .) || return
    (cd go && go vet ./... && GOOS=windows go vet ./... && GOOS=darwin GOARCH=arm64 go vet ./... && GOARCH=386 go vet ./...) || return
    if have cc; then (cd go && go test -race -run 'Test[^V]' .) || return; else skip "no race detector: apt-get install build-essential"; fi
    if have staticcheck; then
        (cd go && staticcheck ./...) || return
    else
        skip "staticcheck is not installed: go install honnef.co/go/tools/cmd/staticcheck@$staticcheck"
    fi
    # The races once each, with their rivals; without the module proxy only the module is tested.
    (cd go/bench && go mod download 2>/dev/null) || { skip "the rivals of the Go module cannot be downloaded"; return 0; }
    (cd go/bench && go vet . && go test -bench 'Read|Write|UTF8|Flood|Echo' -benchtime 10x . && go test -bench Idle -benchtime 1x .)
}
