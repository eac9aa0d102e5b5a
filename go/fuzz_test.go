package websocket

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// rustReceiver is the program that answers records with the events of the Rust core:
//
//	cargo build -p wireloom-testing --example receive
const rustReceiver = "../target/debug/examples/receive"

// rustCore is a running receiver.
type rustCore struct {
	mu     sync.Mutex
	input  io.Writer
	output *bufio.Reader
}

func startRust(t testing.TB) *rustCore {
	t.Helper()
	path := os.Getenv("WIRELOOM_RECEIVE")
	if path == "" {
		path = rustReceiver
	}
	if _, err := os.Stat(path); err != nil {
		t.Skip("skipped: no Rust core to compare with: cargo build -p wireloom-testing --example receive")
	}
	command := exec.Command(path)
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = input.Close()
		_ = command.Wait()
	})
	return &rustCore{input: input, output: bufio.NewReader(output)}
}

// events returns the events of a record's input.
func (c *rustCore) events(t testing.TB, r record) []string {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var text strings.Builder
	for _, line := range r {
		fmt.Fprintf(&text, "%s %s\n", line[0], line[1])
	}
	if _, err := fmt.Fprintf(c.input, "%s\n", text.String()); err != nil {
		t.Fatal(err)
	}
	var answer record
	for {
		line, err := c.output.ReadString('\n')
		if err != nil {
			t.Fatalf("the Rust core failed at %s: %v", text.String(), err)
		}
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !ok {
			return answer.events(t)
		}
		answer = append(answer, [2]string{key, value})
	}
}

// FuzzReceive compares the events of random input with those of the Rust core, split in another way.
func FuzzReceive(f *testing.F) {
	for _, file := range []string{"receive.txt", "deflate.txt"} {
		for _, r := range readVectors(f, file) {
			input := parseBytes(f, r.must(f, "input"))
			_, deflate := r.value("deflate")
			if len(input) < 2000 {
				f.Add(input, r.must(f, "receiver") == "server", deflate, uint8(3))
			}
		}
	}
	rust := startRust(f)
	f.Fuzz(func(t *testing.T, input []byte, server, deflate bool, part uint8) {
		if len(input) == 0 || len(input) > 1<<16 {
			return
		}
		receiver := "client"
		if server {
			receiver = "server"
		}
		r := record{{"receiver", receiver}, {"limits", "1000 2000"}}
		if deflate {
			r = append(r, [2]string{"deflate", "-"})
		}
		r = append(r, [2]string{"input", hex.EncodeToString(input)})
		want := rust.events(t, r)
		got, err := r.receive(t, split(input, 0, int(part)+1), true, part%2 == 0)
		// An input that breaks several rules may fail for another of them.
		isError := func(events []string) bool {
			return len(events) > 0 && strings.HasPrefix(events[len(events)-1], "error ")
		}
		failed := isError(got)
		if isError(want) && failed && len(got) == len(want) {
			got[len(got)-1] = want[len(want)-1]
		}
		// The Rust core refuses a part of a header or of a compressed message; this module waits for the rest.
		if isError(want) && errors.Is(err, io.ErrUnexpectedEOF) {
			want = want[:len(want)-1]
		}
		// The Rust core inflates what has arrived of a message; this module inflates whole messages, and sees control frames
		// and errors before that.
		if deflate && isError(want) && isInflating(want[len(want)-1]) && len(got) >= len(want)-1 {
			for _, event := range got[len(want)-1:] {
				if strings.HasPrefix(event, "text") || strings.HasPrefix(event, "binary") {
					t.Errorf("%v\n got %q\nwant %q", r, got, want)
				}
			}
			got, want = got[:len(want)-1], want[:len(want)-1]
		}
		if !sameEvents(got, want) {
			t.Errorf("%v\n got %q\nwant %q", r, got, want)
		}
		if quick, _ := r.receive(t, [][]byte{input}, false, true); failed != isError(quick) {
			t.Errorf("%v\n got %q without hooks", r, quick)
		}
	})
}

// isInflating reports whether the error may be found before a compressed message is complete.
func isInflating(event string) bool {
	name := strings.Fields(event)[1]
	return name == "invalid-deflate" || name == "invalid-utf8" || name == "message-too-large"
}

// FuzzText compares the validation of UTF-8 with the standard library, in two parts.
func FuzzText(f *testing.F) {
	for _, line := range readVectors(f, "utf8.txt")[0] {
		f.Add(parseBytes(f, line[1]), 3)
	}
	f.Fuzz(func(t *testing.T, text []byte, at int) {
		valid := strings.ToValidUTF8(string(text), "") == string(text)
		if got := validText(text); got != valid {
			t.Errorf("%q: got %v", text, got)
		}
		at = max(0, min(at, len(text)))
		n, ok := validPrefix(text[:at])
		if valid && (!ok || at-n > 3) || n > at {
			t.Errorf("%q: the first %d bytes: got %d, %v", text, at, n, ok)
		}
		if ok && validText(text[n:]) != valid {
			t.Errorf("%q: behind %d bytes: got %v", text, n, !valid)
		}
	})
}
