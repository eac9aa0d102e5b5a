package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	coder "github.com/coder/websocket"
	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
	gorilla "github.com/gorilla/websocket"
	"github.com/lxzan/gws"

	wireloom "github.com/wireloom/wireloom/go"
)

// sizes are the payloads of the races in memory, in bytes.
var sizes = []int{13, 200, 1 << 10, 1 << 20}

// maxSize is the limit of all libraries, in bytes.
const maxSize = 16 << 20

func text(size int) []byte { return bytes.Repeat([]byte("wireloom and "), size/13+1)[:size] }

// memory is a connection whose input repeats, and whose output is counted.
type memory struct {
	input   []byte
	next    int
	written int64
	// handshake answers the request of a client, once; nil for servers.
	handshake chan []byte
	answered  bool
	response  []byte
}

func (m *memory) Read(p []byte) (int, error) {
	if m.handshake != nil && m.response == nil {
		m.response = <-m.handshake
	}
	if len(m.response) > 0 {
		n := copy(p, m.response)
		m.response = m.response[n:]
		return n, nil
	}
	if len(m.input) == 0 {
		select {}
	}
	if m.next == len(m.input) {
		m.next = 0
	}
	n := copy(p, m.input[m.next:])
	m.next += n
	return n, nil
}

func (m *memory) Write(p []byte) (int, error) {
	if m.handshake != nil && !m.answered {
		m.answered = true
		request, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(p)))
		if err != nil {
			return 0, err
		}
		sum := sha1.Sum([]byte(request.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		m.handshake <- []byte("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
			"Sec-WebSocket-Accept: " + base64.StdEncoding.EncodeToString(sum[:]) + "\r\n\r\n")
	}
	m.written += int64(len(p))
	return len(p), nil
}

func (m *memory) Close() error                     { return nil }
func (m *memory) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (m *memory) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (m *memory) SetDeadline(time.Time) error      { return nil }
func (m *memory) SetReadDeadline(time.Time) error  { return nil }
func (m *memory) SetWriteDeadline(time.Time) error { return nil }

// hijack is a response writer over a connection.
type hijack struct {
	*httptest.ResponseRecorder
	conn net.Conn
}

func (h hijack) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(bufio.NewReaderSize(h.conn, 4096), bufio.NewWriterSize(h.conn, 4096)), nil
}

func request() *http.Request {
	r := httptest.NewRequest("GET", "http://localhost/", nil)
	for field, value := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
		"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
	} {
		r.Header.Set(field, value)
	}
	return r
}

func must(tb testing.TB, err error) {
	if err != nil {
		tb.Helper()
		tb.Fatal(err)
	}
}

// frames is as many masked frames as fit into about a megabyte, at least one.
func frames(tb testing.TB, payload []byte) []byte {
	var all bytes.Buffer
	frame := wireloom.NewFrame(wireloom.OpcodeText, true, payload)
	for all.Len() < 1<<20 {
		must(tb, wireloom.WriteFrame(&all, wireloom.NewMaskingKey(), frame))
	}
	return all.Bytes()
}

// gwsCount ends the loop of gws after a number of messages.
type gwsCount struct {
	gws.BuiltinEventHandler
	b     *testing.B
	size  int
	count int
	done  chan struct{}
}

func (c *gwsCount) OnMessage(socket *gws.Conn, message *gws.Message) {
	if len(message.Bytes()) != c.size {
		c.b.Error("wrong length")
	}
	_ = message.Close()
	if c.count++; c.count == c.b.N {
		close(c.done)
		socket.NetConn().(*memory).input = nil
		select {} // the loop has no other end; one goroutine per run stays
	}
}

// kept makes a message escape.
var kept *wireloom.Message

// BenchmarkRead reads masked text messages as a server.
func BenchmarkRead(b *testing.B) {
	for _, size := range sizes {
		payload := text(size)
		input := frames(b, payload)
		run := func(lib string, read func(b *testing.B, conn *memory)) {
			b.Run(fmt.Sprintf("size=%d/lib=%s", size, lib), func(b *testing.B) {
				b.ReportAllocs()
				defer cpu(b)()
				read(b, &memory{input: input})
			})
		}
		opts := wireloom.Options{MaxFrameSize: maxSize, MaxMessageSize: maxSize}
		run("wireloom", func(b *testing.B, conn *memory) {
			socket := wireloom.New(conn, "", wireloom.ServerMode, opts)
			ctx := b.Context()
			for b.Loop() {
				msg, err := socket.ReadMessage(ctx)
				if err != nil || len(msg.Payload) != size {
					b.Fatal(err)
				}
			}
		})
		run("wireloom-reused", func(b *testing.B, conn *memory) {
			socket := wireloom.New(conn, "", wireloom.ServerMode, opts)
			ctx := b.Context()
			var msg wireloom.Message
			for b.Loop() {
				if err := socket.ReadMessageInto(ctx, &msg); err != nil || len(msg.Payload) != size {
					b.Fatal(err)
				}
			}
		})
		// As with gws, each message has memory of its own until it is given back.
		run("wireloom-pooled", func(b *testing.B, conn *memory) {
			socket := wireloom.New(conn, "", wireloom.ServerMode, opts)
			ctx := b.Context()
			pool := sync.Pool{New: func() any { return new(wireloom.Message) }}
			for b.Loop() {
				msg := pool.Get().(*wireloom.Message)
				if err := socket.ReadMessageInto(ctx, msg); err != nil || len(msg.Payload) != size {
					b.Fatal(err)
				}
				pool.Put(msg)
			}
		})
		// The least that a message costs whose caller keeps it: its memory and a copy, without WebSocket.
		run("floor-clone", func(b *testing.B, conn *memory) {
			stride := headerLen(size) + size
			for at := 0; b.Loop(); at += stride {
				if at+stride > len(input) {
					at = 0
				}
				kept = &wireloom.Message{Payload: bytes.Clone(input[at : at+size])}
			}
		})
		run("wireloom-ReadFrame", func(b *testing.B, conn *memory) {
			reader := bytes.NewReader(input[:headerLen(size)+size])
			for b.Loop() {
				if _, err := reader.Seek(0, io.SeekStart); err != nil {
					b.Fatal(err)
				}
				frame, err := wireloom.ReadFrame(reader, wireloom.ServerMode, maxSize)
				if err != nil || len(frame.Payload) != size {
					b.Fatal(err)
				}
			}
		})
		run("gws", func(b *testing.B, conn *memory) {
			handler := &gwsCount{b: b, size: size, done: make(chan struct{})}
			upgrader := gws.NewUpgrader(handler, &gws.ServerOption{
				CheckUtf8Enabled: true, ReadMaxPayloadSize: maxSize, WriteMaxPayloadSize: maxSize,
			})
			socket, err := upgrader.UpgradeFromConn(conn, bufio.NewReader(conn), request())
			must(b, err)
			b.ResetTimer()
			go socket.ReadLoop()
			<-handler.done
		})
		run("gorilla", func(b *testing.B, conn *memory) {
			upgrader := gorilla.Upgrader{}
			socket, err := upgrader.Upgrade(hijack{httptest.NewRecorder(), conn}, request(), nil)
			must(b, err)
			for b.Loop() {
				_, p, err := socket.ReadMessage()
				if err != nil || len(p) != size {
					b.Fatal(err)
				}
			}
		})
		run("coder", func(b *testing.B, conn *memory) {
			socket, err := coder.Accept(hijack{httptest.NewRecorder(), conn}, request(), &coder.AcceptOptions{CompressionMode: coder.CompressionDisabled})
			must(b, err)
			socket.SetReadLimit(maxSize)
			ctx := b.Context()
			for b.Loop() {
				_, p, err := socket.Read(ctx)
				if err != nil || len(p) != size {
					b.Fatal(err)
				}
			}
		})
		run("gobwas", func(b *testing.B, conn *memory) {
			rw := struct {
				io.Reader
				io.Writer
			}{bufio.NewReader(conn), conn}
			for b.Loop() {
				p, _, err := wsutil.ReadClientData(rw)
				if err != nil || len(p) != size || !utf8.Valid(p) {
					b.Fatal(err)
				}
			}
		})
	}
}

func headerLen(size int) int {
	switch {
	case size < 126:
		return 6
	case size < 1<<16:
		return 8
	}
	return 14
}

// BenchmarkServerWrite writes text messages as a server.
func BenchmarkServerWrite(b *testing.B) {
	for _, size := range sizes {
		payload := text(size)
		run := func(lib string, write func(conn *memory) func() error) {
			b.Run(fmt.Sprintf("size=%d/lib=%s", size, lib), func(b *testing.B) {
				writing(b, size, &memory{}, write)
			})
		}
		run("wireloom", func(conn *memory) func() error {
			socket := wireloom.New(conn, "", wireloom.ServerMode, wireloom.Options{MaxFrameSize: maxSize})
			ctx, msg := b.Context(), &wireloom.Message{Payload: payload}
			return func() error { return socket.WriteMessage(ctx, msg) }
		})
		run("wireloom-prepared", func(conn *memory) func() error {
			socket := wireloom.New(conn, "", wireloom.ServerMode, wireloom.Options{MaxFrameSize: maxSize})
			ctx, msg := b.Context(), wireloom.PrepareMessage(&wireloom.Message{Payload: payload})
			return func() error { return socket.WritePrepared(ctx, msg) }
		})
		run("wireloom-WriteFrame", func(conn *memory) func() error {
			frame := wireloom.NewFrame(wireloom.OpcodeText, true, payload)
			return func() error { return wireloom.WriteFrame(conn, wireloom.Unmasked, frame) }
		})
		// The least that a writer for several goroutines costs.
		run("floor-WriteFrame-locked", func(conn *memory) func() error {
			var mu sync.Mutex
			frame := wireloom.NewFrame(wireloom.OpcodeText, true, payload)
			return func() error {
				mu.Lock()
				defer mu.Unlock()
				return wireloom.WriteFrame(conn, wireloom.Unmasked, frame)
			}
		})
		// With the lock that gobwas leaves to its caller.
		run("gobwas-locked", func(conn *memory) func() error {
			var mu sync.Mutex
			return func() error {
				mu.Lock()
				defer mu.Unlock()
				return ws.WriteFrame(conn, ws.NewTextFrame(payload))
			}
		})
		run("gws", func(conn *memory) func() error {
			upgrader := gws.NewUpgrader(gws.BuiltinEventHandler{}, &gws.ServerOption{WriteMaxPayloadSize: maxSize})
			socket, err := upgrader.UpgradeFromConn(conn, bufio.NewReader(conn), request())
			must(b, err)
			return func() error { return socket.WriteMessage(gws.OpcodeText, payload) }
		})
		run("gorilla", func(conn *memory) func() error {
			upgrader := gorilla.Upgrader{}
			socket, err := upgrader.Upgrade(hijack{httptest.NewRecorder(), conn}, request(), nil)
			must(b, err)
			return func() error { return socket.WriteMessage(gorilla.TextMessage, payload) }
		})
		run("coder", func(conn *memory) func() error {
			socket, err := coder.Accept(hijack{httptest.NewRecorder(), conn}, request(), &coder.AcceptOptions{CompressionMode: coder.CompressionDisabled})
			must(b, err)
			ctx := b.Context()
			return func() error { return socket.Write(ctx, coder.MessageText, payload) }
		})
		run("gobwas", func(conn *memory) func() error {
			return func() error { return ws.WriteFrame(conn, ws.NewTextFrame(payload)) }
		})
	}
}

// BenchmarkClientWrite writes masked text messages as a client.
func BenchmarkClientWrite(b *testing.B) {
	for _, size := range sizes {
		payload := text(size)
		run := func(lib string, write func(conn *memory) func() error) {
			b.Run(fmt.Sprintf("size=%d/lib=%s", size, lib), func(b *testing.B) {
				writing(b, size, &memory{handshake: make(chan []byte, 1)}, write)
			})
		}
		run("wireloom", func(conn *memory) func() error {
			socket := wireloom.New(conn, "", wireloom.ClientMode, wireloom.Options{MaxFrameSize: maxSize})
			conn.handshake = nil
			ctx, msg := b.Context(), &wireloom.Message{Payload: payload}
			return func() error { return socket.WriteMessage(ctx, msg) }
		})
		run("gws", func(conn *memory) func() error {
			socket, _, err := gws.NewClientFromConn(gws.BuiltinEventHandler{}, &gws.ClientOption{WriteMaxPayloadSize: maxSize, Addr: "ws://localhost/"}, conn)
			must(b, err)
			return func() error { return socket.WriteMessage(gws.OpcodeText, payload) }
		})
		run("gorilla", func(conn *memory) func() error {
			dialer := gorilla.Dialer{NetDial: func(string, string) (net.Conn, error) { return conn, nil }}
			socket, _, err := dialer.Dial("ws://localhost/", nil)
			must(b, err)
			// gorilla masks in place.
			return func() error { return socket.WriteMessage(gorilla.TextMessage, payload) }
		})
		run("coder", func(conn *memory) func() error {
			transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
			socket, _, err := coder.Dial(b.Context(), "ws://localhost/", &coder.DialOptions{
				HTTPClient: &http.Client{Transport: transport}, CompressionMode: coder.CompressionDisabled,
			})
			must(b, err)
			ctx := b.Context()
			return func() error { return socket.Write(ctx, coder.MessageText, payload) }
		})
		run("gobwas", func(conn *memory) func() error {
			conn.handshake = nil
			return func() error { return ws.WriteFrame(conn, ws.MaskFrame(ws.NewTextFrame(payload))) }
		})
	}
}

// writing measures writes and checks that all bytes were written.
func writing(b *testing.B, size int, conn *memory, write func(conn *memory) func() error) {
	b.ReportAllocs()
	f := write(conn)
	defer cpu(b)()
	conn.written = 0
	count := int64(0)
	for b.Loop() {
		if err := f(); err != nil {
			b.Fatal(err)
		}
		count++
	}
	if conn.written < count*int64(size) || conn.written > count*int64(size+14+10*(size/4096+1)) {
		b.Fatalf("%d messages of %d bytes became %d bytes", count, size, conn.written)
	}
}

// cpu reports the processor time of an operation, which other programs disturb less than the time that passed. The
// function that it returns ends the measurement.
func cpu(b *testing.B) func() {
	start := processTime(b)
	return func() { b.ReportMetric(float64(processTime(b)-start)/float64(max(b.N, 1)), "cpu-ns/op") }
}

// processTime is the processor time of this process.
func processTime(tb testing.TB) time.Duration {
	var usage syscall.Rusage
	must(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkUTF8 validates text that is not ASCII, beside the standard library.
func BenchmarkUTF8(b *testing.B) {
	for name, sample := range map[string]string{"latin": "größer als Wörter ", "cjk": "日本語のテキスト", "emoji": "😀🎉🚀✨"} {
		payload := []byte(strings.Repeat(sample, 1<<16/len(sample)))
		input := frames(b, payload)
		b.Run("text="+name+"/lib=wireloom", func(b *testing.B) {
			socket := wireloom.New(&memory{input: input}, "", wireloom.ServerMode, wireloom.Options{MaxFrameSize: maxSize})
			var msg wireloom.Message
			defer cpu(b)()
			for b.Loop() {
				must(b, socket.ReadMessageInto(b.Context(), &msg))
			}
		})
		b.Run("text="+name+"/lib=unicode-utf8-alone", func(b *testing.B) {
			defer cpu(b)()
			for b.Loop() {
				if !utf8.Valid(payload) {
					b.Fatal("invalid")
				}
			}
		})
	}
}
