package websocket

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The vectors are made by the Rust core: testing/vectors/README.md describes the format.
const vectors = "../testing/vectors/"

// record is a record of a file: its lines, split at the first space.
type record [][2]string

func (r record) value(key string) (string, bool) {
	for _, line := range r {
		if line[0] == key {
			return line[1], true
		}
	}
	return "", false
}

func (r record) must(t testing.TB, key string) string {
	t.Helper()
	value, ok := r.value(key)
	if !ok {
		t.Fatalf("no %s in %v", key, r)
	}
	return value
}

func readVectors(t testing.TB, name string) []record {
	t.Helper()
	text, err := os.ReadFile(vectors + name)
	if err != nil {
		t.Fatal(err)
	}
	var records []record
	for block := range strings.SplitSeq(string(text), "\n\n") {
		var next record
		for line := range strings.SplitSeq(block, "\n") {
			if key, value, ok := strings.Cut(line, " "); ok && key != "#" {
				next = append(next, [2]string{key, value})
			}
		}
		if next != nil {
			records = append(records, next)
		}
	}
	if len(records) == 0 {
		t.Fatalf("%s is empty", name)
	}
	return records
}

func parseBytes(t testing.TB, text string) []byte {
	t.Helper()
	if text == "-" {
		return []byte{}
	}
	var all []byte
	for word := range strings.SplitSeq(text, " ") {
		digits, repeat, ok := strings.Cut(word, "*")
		count := 1
		var err error
		if ok {
			if count, err = strconv.Atoi(repeat); err != nil {
				t.Fatal(err)
			}
		}
		b, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, bytes.Repeat(b, count)...)
	}
	return all
}

func number(t testing.TB, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// vectorErrors are the names of the errors in the vectors.
var vectorErrors = map[string][]error{
	"reserved-opcode":         {ErrOpcodeUnknown},
	"reserved-bits":           {ErrRSVBitsUnsupported},
	"fragmented-control":      {ErrControlFrameFragmented},
	"control-too-long":        {ErrControlFrameTooLarge},
	"non-minimal-length":      {ErrFrameLengthInvalid},
	"length-out-of-range":     {ErrFrameLengthInvalid},
	"unmasked-frame":          {ErrClientFrameUnmasked},
	"masked-frame":            {ErrServerFrameMasked},
	"unexpected-continuation": {ErrContinuationUnexpected},
	"unfinished-message":      {ErrContinuationExpected},
	"invalid-utf8":            {ErrInvalidFramePayload},
	"truncated-close-code":    {ErrClosePayloadInvalid},
	"invalid-close-code":      {ErrCloseStatusInvalid, ErrCloseStatusReserved},
	"invalid-close-reason":    {ErrInvalidFramePayload},
	"invalid-deflate":         {ErrInvalidDeflate},
	"frame-too-large":         {ErrFrameTooLarge},
	"message-too-large":       {ErrMessageTooLarge},
}

// event is a line of a record that describes what was received.
func event(key string, payload []byte) string { return key + " " + hex.EncodeToString(payload) }

func (r record) events(t testing.TB) (events []string) {
	t.Helper()
	for _, line := range r {
		switch key, value := line[0], line[1]; key {
		case "text", "binary", "ping", "pong":
			events = append(events, event(key, parseBytes(t, value)))
		case "close":
			code, reason, _ := strings.Cut(value, " ")
			events = append(events, event("close "+code, parseBytes(t, reason)))
		case "error":
			events = append(events, "error "+value)
		}
	}
	return events
}

// scriptConn is a connection from which one part of the input after the other is read, and then io.EOF. It keeps what is
// written.
type scriptConn struct {
	parts   [][]byte
	written bytes.Buffer
}

func (c *scriptConn) Read(p []byte) (int, error) {
	if len(c.parts) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.parts[0])
	if c.parts[0] = c.parts[0][n:]; len(c.parts[0]) == 0 {
		c.parts = c.parts[1:]
	}
	return n, nil
}

func (c *scriptConn) Write(p []byte) (int, error)      { return c.written.Write(p) }
func (c *scriptConn) Close() error                     { return nil }
func (c *scriptConn) LocalAddr() net.Addr              { return nil }
func (c *scriptConn) RemoteAddr() net.Addr             { return nil }
func (c *scriptConn) SetDeadline(time.Time) error      { return nil }
func (c *scriptConn) SetReadDeadline(time.Time) error  { return nil }
func (c *scriptConn) SetWriteDeadline(time.Time) error { return nil }

// split cuts the input into parts of n bytes after the first, which has first bytes.
func split(input []byte, first, n int) (parts [][]byte) {
	if first > 0 && first < len(input) {
		parts, input = append(parts, input[:first]), input[first:]
	}
	for part := range slices.Chunk(input, n) {
		parts = append(parts, part)
	}
	return parts
}

// replay returns the events of an input, and those without control frames if hooks is false, as the hooks switch off the
// path for messages that are in the buffer.
func (r record) replay(t testing.TB, parts [][]byte, hooks, reuse bool) []string {
	t.Helper()
	events, _ := r.receive(t, parts, hooks, reuse)
	return events
}

// receive is replay, with the error that ended it.
func (r record) receive(t testing.TB, parts [][]byte, hooks, reuse bool) (events []string, _ error) {
	t.Helper()
	frame, message, _ := strings.Cut(r.must(t, "limits"), " ")
	opts := Options{MaxFrameSize: number(t, frame), MaxMessageSize: number(t, message), Compression: &Compression{}}
	closed := func(payload []byte) {
		code, reason := "-", payload
		if len(payload) >= 2 {
			code, reason = strconv.Itoa(int(closeCode(payload))), payload[2:]
		}
		events = append(events, event("close "+code, reason))
	}
	if hooks {
		opts.Hooks.OnReadFrame = func(_ ClientKey, f *Frame) {
			switch f.Opcode() {
			case OpcodePing:
				events = append(events, event("ping", f.Payload))
			case OpcodePong:
				events = append(events, event("pong", f.Payload))
			case OpcodeClose:
				closed(f.Payload)
			}
		}
	}
	mode := ServerMode
	if r.must(t, "receiver") == "client" {
		mode = ClientMode
	}
	var params *deflateParams
	if names, ok := r.value("deflate"); ok {
		params = &deflateParams{server: deflateSide{bits: 15}, client: deflateSide{bits: 15}}
		params.server.noTakeover = strings.Contains(names, "server_no_context_takeover")
		params.client.noTakeover = strings.Contains(names, "client_no_context_takeover")
	}
	ws := newWebsocket(&scriptConn{parts: parts}, "", mode, &opts, params)
	var into Message
	for {
		msg, err := &into, error(nil)
		if reuse {
			err = ws.ReadMessageInto(t.Context(), msg)
		} else {
			msg, err = ws.ReadMessage(t.Context())
		}
		var violation *Error
		switch {
		case err == nil && msg.Binary:
			events = append(events, event("binary", msg.Payload))
		case err == nil:
			events = append(events, event("text", msg.Payload))
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return events, err
		case errors.As(err, &violation):
			return append(events, fmt.Sprintf("error %s %d", vectorName(err), violation.StatusCode())), err
		default:
			t.Fatal(err)
		}
	}
}

// vectorName returns a name of an error; several names may have one error.
func vectorName(err error) string {
	for name, errs := range vectorErrors {
		if slices.ContainsFunc(errs, func(known error) bool { return errors.Is(err, known) }) {
			return name
		}
	}
	return err.Error()
}

// sameEvents compares events; errors are compared by their values, because several names may have one.
func sameEvents(got, want []string) bool {
	return slices.EqualFunc(got, want, func(a, b string) bool {
		nameA, codeA, okA := strings.Cut(strings.TrimPrefix(a, "error "), " ")
		nameB, codeB, okB := strings.Cut(strings.TrimPrefix(b, "error "), " ")
		if okA && okB && strings.HasPrefix(a, "error ") && strings.HasPrefix(b, "error ") {
			shared := func(err error) bool { return slices.Contains(vectorErrors[nameB], err) }
			return codeA == codeB && slices.ContainsFunc(vectorErrors[nameA], shared)
		}
		return a == b
	})
}

func TestVectorsReceive(t *testing.T) {
	for _, file := range []string{"receive.txt", "deflate.txt"} {
		for _, r := range readVectors(t, file) {
			t.Run(strings.TrimSuffix(file, ".txt")+"/"+r.must(t, "name"), func(t *testing.T) {
				t.Parallel()
				input, want := parseBytes(t, r.must(t, "input")), r.events(t)
				var messages []string
				for _, line := range want {
					if key, _, _ := strings.Cut(line, " "); key == "text" || key == "binary" || key == "error" {
						messages = append(messages, line)
					}
				}
				check := func(first, n int) {
					t.Helper()
					for _, reuse := range []bool{false, true} {
						if got := r.replay(t, split(input, first, n), true, reuse); !sameEvents(got, want) {
							t.Errorf("parts of %d and %d bytes: got %.300q, want %.300q", first, n, got, want)
						}
						if got := r.replay(t, split(input, first, n), false, reuse); !sameEvents(got, messages) {
							t.Errorf("parts of %d and %d bytes, without hooks: got %.300q, want %.300q", first, n, got, messages)
						}
					}
				}
				check(0, max(1, len(input)))
				for _, n := range []int{1, 2, 3, 7, 1000, 5000} {
					if n > 1 || len(input) < 10_000 {
						check(0, n)
					}
				}
				for first := 1; first < min(len(input), 300); first++ {
					if len(input) < 4096 || first < 20 {
						check(first, len(input))
					}
				}
			})
		}
	}
}

func TestVectorsEncode(t *testing.T) {
	for _, r := range readVectors(t, "encode.txt") {
		var key MaskingKey
		copy(key[:], parseBytes(t, r.must(t, "key")))
		payload := parseBytes(t, r.must(t, "payload"))
		rsv := RSVBit(number(t, r.must(t, "rsv")) << 4)
		opcode := Opcode(number(t, r.must(t, "opcode")))
		frame := NewFrame(opcode, r.must(t, "fin") == "1", payload, rsv)
		want := parseBytes(t, r.must(t, "bytes"))
		var written bytes.Buffer
		if err := WriteFrame(&written, key, frame); err != nil || !bytes.Equal(written.Bytes(), want) {
			t.Errorf("WriteFrame: %v: got %.80x, want %.80x, %v", frame, written.Bytes(), want, err)
		}
		if got := MarshalFrame(frame, key); !bytes.Equal(got, want) {
			t.Errorf("MarshalFrame: %v: got %.80x, want %.80x", frame, got, want)
		}
		read, err := ReadFrame(bytes.NewReader(want), ClientMode, len(payload))
		if err != nil || read.header != frame.header || !bytes.Equal(read.Payload, payload) {
			t.Errorf("ReadFrame: %v: got %v, %v", frame, read, err)
		}
	}
}

func TestVectorsMask(t *testing.T) {
	for _, line := range readVectors(t, "mask.txt")[0] {
		fields := strings.Split(line[1], " ")
		var key MaskingKey
		copy(key[:], parseBytes(t, fields[0]))
		offset, input, want := number(t, fields[1]), parseBytes(t, fields[2]), parseBytes(t, fields[3])
		got := make([]byte, len(input))
		ascii := mask(got, input, rotateKey(key.word(), offset))
		isASCII := !slices.ContainsFunc(want, func(b byte) bool { return b >= 0x80 })
		if !bytes.Equal(got, want) || ascii != isASCII {
			t.Errorf("%v: got %x, ASCII %v", line, got, ascii)
		}
	}
}

func TestVectorsUTF8(t *testing.T) {
	for _, line := range readVectors(t, "utf8.txt")[0] {
		text := parseBytes(t, line[1])
		n, ok := validPrefix(text)
		got := "invalid"
		if ok && n == len(text) {
			got = "valid"
		} else if ok {
			got = "incomplete"
		}
		if got != line[0] {
			t.Errorf("%q: got %s, want %s", text, got, line[0])
		}
	}
}

func TestVectorsCloseCodes(t *testing.T) {
	for _, line := range readVectors(t, "close.txt")[0] {
		code, sendable, _ := strings.Cut(line[1], " ")
		if got := StatusCode(number(t, code)).isSendable(); got != (sendable == "yes") {
			t.Errorf("%s: got %v", line[1], got)
		}
	}
}

func TestVectorsAccept(t *testing.T) {
	for _, line := range readVectors(t, "accept.txt")[0] {
		key, want, _ := strings.Cut(line[1], " ")
		if got := ClientKey(key).accept(); got != want {
			t.Errorf("%s: got %s, want %s", key, got, want)
		}
		if !ClientKey(key).isValid() {
			t.Errorf("%s is valid", key)
		}
	}
}

// A final block of the sender ends a DEFLATE stream: what follows, in the same message or in the next, cannot refer to what came
// before, as in the Rust core. Both inputs were found by FuzzReceive.
func TestFinalBlocksEmptyTheWindow(t *testing.T) {
	for name, input := range map[string]string{
		"at the end of the data": "c1ce37fa213d62301a37b7ca317df6419d07f5142b2b4cf430382758303131fb942ed89440d8e339303030313030303030303841303030303" +
			"030303030303030303038853030303030303030303030303030a9edc18637fa31582458303130323030",
		"at the end of the tail": "c1ce37fa213d63301a37b7ca317df6419d07f5142b2b4cf430382758303131fb942ed89440d8e339303030313030303030303841303030303" +
			"030303030303030303038853030303030303030303030303030a9edc18637fa3158255830313032c1813730303037c185374138389542303837",
	} {
		r := record{{"receiver", "server"}, {"limits", "1000 2000"}, {"deflate", "-"}, {"input", input}}
		bytes, err := hex.DecodeString(input)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := r.receive(t, [][]byte{bytes}, false, true); len(got) < 2 || got[len(got)-1] != "error invalid-deflate 1007" {
			t.Errorf("%s: got %q", name, got)
		}
	}
}
