package websocket_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	websocket "github.com/wireloom/wireloom/go"
)

// pair is a server's connection and a client's, over TCP.
type pair struct {
	server, client *websocket.Websocket
	// The sockets under them.
	serverConn, clientConn net.Conn
}

// faultyConn replaces writes.
type faultyConn struct {
	net.Conn
	write func(conn net.Conn, p []byte) (int, error)
}

func (c faultyConn) Write(p []byte) (int, error) { return c.write(c.Conn, p) }

// connect returns two ends. wrap, if not nil, wraps the server's socket.
func connect(t testing.TB, serverOpts, clientOpts websocket.Options, wrap func(net.Conn) net.Conn) pair {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	noError(t, err)
	server, err := listener.Accept()
	noError(t, err)
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
	})
	p := pair{serverConn: server, clientConn: client}
	if wrap != nil {
		p.serverConn = wrap(server)
	}
	p.server = websocket.New(p.serverConn, "server", websocket.ServerMode, serverOpts)
	p.client = websocket.New(client, "client", websocket.ClientMode, clientOpts)
	return p
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("unexpected error: %v", err)
	}
}

func isError(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want %v", err, want)
	}
}

func equal[T comparable](t testing.TB, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func writeFrames(t testing.TB, conn net.Conn, frames ...*websocket.Frame) {
	t.Helper()
	for _, frame := range frames {
		noError(t, websocket.WriteFrame(conn, websocket.NewMaskingKey(), frame))
	}
}

func readFrame(t testing.TB, conn io.Reader) *websocket.Frame {
	t.Helper()
	frame, err := websocket.ReadFrame(conn, websocket.ClientMode, 1<<20)
	noError(t, err)
	return frame
}

func wantClose(t testing.TB, conn io.Reader, code websocket.StatusCode, reason string) {
	t.Helper()
	frame := readFrame(t, conn)
	equal(t, frame.Opcode(), websocket.OpcodeClose)
	if len(frame.Payload) < 2 {
		t.Fatalf("Close frame without a code")
	}
	equal(t, websocket.StatusCode(binary.BigEndian.Uint16(frame.Payload)), code)
	if !strings.Contains(string(frame.Payload[2:]), reason) {
		t.Fatalf("reason %q does not contain %q", frame.Payload[2:], reason)
	}
	if len(frame.Payload) > 125 {
		t.Fatalf("Close frame of %d bytes", len(frame.Payload))
	}
}

func wantDisconnect(t testing.TB, conn net.Conn) {
	t.Helper()
	noError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the connection is open: read %d bytes, %v", n, err)
	}
}

func text(payload string) *websocket.Frame {
	return websocket.NewFrame(websocket.OpcodeText, true, []byte(payload))
}

// inBackground runs f and returns a function that waits for it.
func inBackground(t testing.TB, f func() error) func() error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	return func() error {
		t.Helper()
		select {
		case err := <-done:
			return err
		case <-time.After(20 * time.Second):
			t.Fatal("hangs")
			return nil
		}
	}
}

func TestHandshake(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "of=the-application")
		ws, err := websocket.Accept(w, r, websocket.Options{})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = ws.Handle(r.Context(), websocket.EchoHandler)
	}))
	defer server.Close()
	good := map[string]string{
		"Connection": "upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
		"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
	}
	for name, test := range map[string]struct {
		method, field, value string
		status               int
	}{
		"valid":            {"GET", "", "", 101},
		"other case":       {"GET", "Upgrade", "WebSocket", 101},
		"list":             {"GET", "Upgrade", "h2c, websocket", 101},
		"no connection":    {"GET", "Connection", "", 101},
		"other connection": {"GET", "Connection", "keep-alive", 101},
		"no upgrade":       {"GET", "Upgrade", "", 400},
		"other upgrade":    {"GET", "Upgrade", "http/2", 400},
		"no version":       {"GET", "Sec-WebSocket-Version", "", 400},
		"old version":      {"GET", "Sec-WebSocket-Version", "8", 400},
		"no key":           {"GET", "Sec-WebSocket-Key", "", 400},
		"short key":        {"GET", "Sec-WebSocket-Key", "c2hvcnQ=", 400},
		"no base64":        {"GET", "Sec-WebSocket-Key", "!!!", 400},
		"post":             {"POST", "", "", 400},
	} {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequest(test.method, server.URL, nil)
			noError(t, err)
			for field, value := range good {
				request.Header.Set(field, value)
			}
			if test.value != "" {
				request.Header.Set(test.field, test.value)
			} else {
				request.Header.Del(test.field)
			}
			response, err := http.DefaultTransport.RoundTrip(request)
			noError(t, err)
			defer response.Body.Close()
			equal(t, response.StatusCode, test.status)
			if test.status == 101 {
				equal(t, response.Header.Get("Sec-WebSocket-Accept"), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
				equal(t, response.Header.Get("Connection"), "upgrade")
				equal(t, response.Header.Get("Upgrade"), "websocket")
				equal(t, response.Header.Get("Set-Cookie"), "of=the-application")
			}
			if strings.Contains(name, "version") {
				equal(t, response.Header.Get("Sec-WebSocket-Version"), "13")
			}
		})
	}
}

type brokenHijacker struct{ http.ResponseWriter }

func (brokenHijacker) Header() http.Header { return http.Header{} }
func (brokenHijacker) WriteHeader(int)     {}
func (brokenHijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, errors.New("not today")
}

func TestAcceptPanicsWithoutAConnection(t *testing.T) {
	request := httptest.NewRequest("GET", "/", nil)
	request.Header.Set("Upgrade", "websocket")
	request.Header.Set("Sec-WebSocket-Version", "13")
	request.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
	for want, w := range map[string]http.ResponseWriter{
		"websocket: accept: server does not support hijacking": httptest.NewRecorder(),
		"websocket: accept: hijack failed: not today":          brokenHijacker{},
	} {
		func() {
			defer func() { equal(t, fmt.Sprint(recover()), want) }()
			_, _ = websocket.Accept(w, request, websocket.Options{})
		}()
	}
}

// A client may send frames before it has read the response.
func TestFramesBehindTheRequestAreNotLost(t *testing.T) {
	for _, size := range []int{5, 125, 4000, 4090, 10_000} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ws, err := websocket.Accept(w, r, websocket.Options{})
			if err == nil {
				err = ws.Handle(r.Context(), websocket.EchoHandler)
			}
			if err != nil {
				t.Error(err)
			}
		}))
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		noError(t, err)
		var request bytes.Buffer
		request.WriteString("GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
		payload := strings.Repeat("e", size)
		noError(t, websocket.WriteFrame(&request, websocket.NewMaskingKey(), text(payload)))
		noError(t, websocket.WriteFrame(&request, websocket.NewMaskingKey(), text("second")))
		_, err = conn.Write(request.Bytes())
		noError(t, err)
		reader := bufio.NewReader(conn)
		response, err := http.ReadResponse(reader, nil)
		noError(t, err)
		equal(t, response.StatusCode, 101)
		equal(t, string(readFrame(t, reader).Payload), payload)
		equal(t, string(readFrame(t, reader).Payload), "second")
		noError(t, conn.Close())
		server.Close()
	}
}

func TestEcho(t *testing.T) {
	for _, size := range []int{0, 1, 125, 126, 1000, 16 << 10, 16<<10 + 1, 65_535, 65_536, 200_000} {
		p := connect(t, websocket.Options{}, websocket.Options{}, nil)
		served := inBackground(t, func() error { return p.server.Handle(t.Context(), websocket.EchoHandler) })
		for _, isBinary := range []bool{false, true} {
			sent := &websocket.Message{Binary: isBinary, Payload: bytes.Repeat([]byte("x"), size)}
			wrote := inBackground(t, func() error { return p.client.WriteMessage(t.Context(), sent) })
			got, err := p.client.ReadMessage(t.Context())
			noError(t, err)
			noError(t, wrote())
			equal(t, got.Binary, isBinary)
			equal(t, bytes.Equal(got.Payload, sent.Payload), true)
		}
		noError(t, p.client.Close())
		noError(t, served())
	}
}

func TestHandleTellsThePeerWhatItBroke(t *testing.T) {
	opts := websocket.Options{MaxFrameSize: 128, MaxMessageSize: 256}
	frame := websocket.NewFrame
	full := bytes.Repeat([]byte("0"), 128)
	for name, test := range map[string]struct {
		want   *websocket.Error
		code   websocket.StatusCode
		frames []*websocket.Frame
	}{
		"continuation":  {websocket.ErrContinuationUnexpected, 1002, []*websocket.Frame{frame(websocket.OpcodeContinuation, true, full)}},
		"frame size":    {websocket.ErrFrameTooLarge, 1009, []*websocket.Frame{frame(websocket.OpcodeText, true, append(full, '0'))}},
		"rsv":           {websocket.ErrRSVBitsUnsupported, 1002, []*websocket.Frame{frame(websocket.OpcodeText, true, full, websocket.RSV1)}},
		"fragmented":    {websocket.ErrControlFrameFragmented, 1002, []*websocket.Frame{frame(websocket.OpcodeClose, false, nil)}},
		"control size":  {websocket.ErrControlFrameTooLarge, 1002, []*websocket.Frame{frame(websocket.OpcodeClose, true, full[:126])}},
		"utf8":          {websocket.ErrInvalidFramePayload, 1007, []*websocket.Frame{frame(websocket.OpcodeText, true, []byte{0xC3})}},
		"unfinished":    {websocket.ErrContinuationExpected, 1002, []*websocket.Frame{frame(websocket.OpcodeText, false, full), text("x")}},
		"opcode":        {websocket.ErrOpcodeUnknown, 1002, []*websocket.Frame{frame(websocket.Opcode(255), true, nil)}},
		"close payload": {websocket.ErrClosePayloadInvalid, 1002, []*websocket.Frame{frame(websocket.OpcodeClose, true, []byte("X"))}},
		"close low":     {websocket.ErrCloseStatusInvalid, 1002, []*websocket.Frame{websocket.NewCloseFrame(999, "")}},
		"close high":    {websocket.ErrCloseStatusInvalid, 1002, []*websocket.Frame{websocket.NewCloseFrame(5001, "")}},
		"close code":    {websocket.ErrCloseStatusReserved, 1002, []*websocket.Frame{websocket.NewCloseFrame(1015, "")}},
		"close utf8":    {websocket.ErrInvalidFramePayload, 1007, []*websocket.Frame{websocket.NewCloseFrame(1000, "\xC3")}},
		"message size": {websocket.ErrMessageTooLarge, 1009, []*websocket.Frame{
			frame(websocket.OpcodeText, false, full), frame(websocket.OpcodeContinuation, false, full),
			frame(websocket.OpcodeContinuation, true, full[:1]),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := connect(t, opts, websocket.Options{}, nil)
			served := inBackground(t, func() error { return p.server.Handle(t.Context(), websocket.EchoHandler) })
			writeFrames(t, p.clientConn, test.frames...)
			wantClose(t, p.clientConn, test.code, test.want.Error())
			wantDisconnect(t, p.clientConn)
			err := served()
			isError(t, err, test.want)
			var known *websocket.Error
			equal(t, errors.As(err, &known) && known.StatusCode() == test.code, true)
		})
	}
	t.Run("unmasked", func(t *testing.T) {
		p := connect(t, opts, websocket.Options{}, nil)
		served := inBackground(t, func() error { return p.server.Handle(t.Context(), websocket.EchoHandler) })
		noError(t, websocket.WriteFrame(p.clientConn, websocket.Unmasked, text("x")))
		wantClose(t, p.clientConn, 1002, websocket.ErrClientFrameUnmasked.Error())
		isError(t, served(), websocket.ErrClientFrameUnmasked)
	})
}

func TestControlFramesBetweenFragments(t *testing.T) {
	p := connect(t, websocket.Options{}, websocket.Options{}, nil)
	served := inBackground(t, func() error { return p.server.Handle(t.Context(), websocket.EchoHandler) })
	writeFrames(t, p.clientConn,
		websocket.NewFrame(websocket.OpcodeText, false, []byte("0")),
		websocket.NewFrame(websocket.OpcodePong, true, nil),
		websocket.NewFrame(websocket.OpcodePing, true, []byte("p")),
		websocket.NewFrame(websocket.OpcodeContinuation, true, []byte("1")))
	pong := readFrame(t, p.clientConn)
	equal(t, pong.Opcode(), websocket.OpcodePong)
	equal(t, string(pong.Payload), "p")
	equal(t, string(readFrame(t, p.clientConn).Payload), "01")
	noError(t, p.client.Close())
	noError(t, served())
}

// The handler's error is not one of the connection: its io.EOF is not the peer's, and its code may be one of another connection.
func TestErrorsOfTheHandler(t *testing.T) {
	_, relayed := websocket.ReadFrame(bytes.NewReader(nil), websocket.ClientMode, 1) // as of a connection behind a proxy
	for _, test := range []struct {
		err    error
		code   websocket.StatusCode
		reason string
	}{
		{io.EOF, websocket.StatusInternalError, "EOF"},
		{fmt.Errorf("database: %w", io.EOF), websocket.StatusInternalError, "database: EOF"},
		{relayed, websocket.StatusInternalError, "error reading frame header"},
		{websocket.ErrMessageTooLarge, websocket.StatusTooLarge, "message is larger"},
	} {
		p := connect(t, websocket.Options{CloseTimeout: time.Millisecond}, websocket.Options{}, nil)
		handler := func(context.Context, *websocket.Message) (*websocket.Message, error) { return nil, test.err }
		served := inBackground(t, func() error { return p.server.Handle(t.Context(), handler) })
		writeFrames(t, p.clientConn, text("x"))
		wantClose(t, p.clientConn, test.code, test.reason)
		isError(t, served(), test.err)
	}
}

// Hooks hold the lock of their direction, and must not close. One that does ends its connection late, but does not hang.
func TestHooksThatClose(t *testing.T) {
	for name, set := range map[string]func(*websocket.Hooks, func()){
		"OnReadMessage": func(h *websocket.Hooks, hook func()) {
			h.OnReadMessage = func(websocket.ClientKey, *websocket.Message) { hook() }
		},
		"OnReadFrame": func(h *websocket.Hooks, hook func()) {
			h.OnReadFrame = func(websocket.ClientKey, *websocket.Frame) { hook() }
		},
		"OnReadError": func(h *websocket.Hooks, hook func()) { h.OnReadError = func(websocket.ClientKey, error) { hook() } },
		"OnWriteFrame": func(h *websocket.Hooks, hook func()) {
			h.OnWriteFrame = func(websocket.ClientKey, *websocket.Frame) { hook() }
		},
		"OnWriteMessage": func(h *websocket.Hooks, hook func()) {
			h.OnWriteMessage = func(websocket.ClientKey, *websocket.Message) { hook() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			var server *websocket.Websocket
			opts := websocket.Options{CloseTimeout: 50 * time.Millisecond}
			set(&opts.Hooks, func() { _ = server.Close() })
			p := connect(t, opts, websocket.Options{}, nil)
			server = p.server
			served := inBackground(t, func() error { return p.server.Handle(t.Context(), websocket.EchoHandler) })
			frame := text("x")
			if name == "OnReadError" {
				frame = websocket.NewFrame(websocket.Opcode(3), true, nil)
			}
			writeFrames(t, p.clientConn, frame)
			_ = served()
			noError(t, p.clientConn.SetReadDeadline(time.Now().Add(10*time.Second)))
			_, err := io.Copy(io.Discard, p.clientConn)
			noError(t, err)
		})
	}
}

func TestTimeouts(t *testing.T) {
	const timeout = 50 * time.Millisecond
	p := connect(t, websocket.Options{ReadTimeout: timeout, WriteTimeout: time.Minute}, websocket.Options{}, nil)
	start := time.Now()
	served := inBackground(t, func() error { return p.server.Handle(t.Context(), websocket.EchoHandler) })
	wantClose(t, p.clientConn, websocket.StatusAbnormalClose, "error reading frame header")
	isError(t, served(), os.ErrDeadlineExceeded)
	equal(t, time.Since(start) >= timeout, true)

	p = connect(t, websocket.Options{CloseTimeout: timeout}, websocket.Options{}, nil)
	start = time.Now()
	isError(t, p.server.Close(), os.ErrDeadlineExceeded)
	equal(t, time.Since(start) >= timeout, true)
	wantClose(t, p.clientConn, 1000, "")
	wantDisconnect(t, p.clientConn)

	// A peer that keeps sending does not prolong the closing handshake.
	p = connect(t, websocket.Options{CloseTimeout: timeout}, websocket.Options{}, nil)
	go func(conn net.Conn) {
		for websocket.WriteFrame(conn, websocket.NewMaskingKey(), text("more")) == nil {
			time.Sleep(time.Millisecond)
		}
	}(p.clientConn)
	isError(t, p.server.Close(), os.ErrDeadlineExceeded)

	// A peer that does not read: the write fails, and Close does not hang although the lock is held.
	p = connect(t, websocket.Options{CloseTimeout: timeout}, websocket.Options{}, nil)
	large := &websocket.Message{Binary: true, Payload: make([]byte, 64<<20)}
	wrote := inBackground(t, func() error { return p.server.WriteMessage(t.Context(), large) })
	time.Sleep(timeout) // until the socket's buffers are full; if it is not, the test passes as well
	if err := p.server.Close(); err == nil {
		t.Error("Close without a reply has no error")
	}
	if err := wrote(); err == nil {
		t.Error("a message that was not read was written")
	}
	isError(t, p.server.WriteMessage(t.Context(), &websocket.Message{}), websocket.ErrConnectionClosed)
}

func TestClosingHandshake(t *testing.T) {
	t.Run("by the server", func(t *testing.T) {
		p := connect(t, websocket.Options{}, websocket.Options{}, nil)
		closed := inBackground(t, p.server.Close)
		wantClose(t, p.clientConn, 1000, "")
		// Frames that arrive meanwhile are ignored.
		writeFrames(t, p.clientConn, websocket.NewFrame(websocket.OpcodePing, true, nil), text("ignored"),
			websocket.NewCloseFrame(1000, ""))
		wantDisconnect(t, p.clientConn)
		noError(t, closed())
		_, err := p.server.ReadMessage(t.Context())
		isError(t, err, websocket.ErrConnectionClosed)
		isError(t, p.server.WriteMessage(t.Context(), &websocket.Message{}), websocket.ErrConnectionClosed)
		isError(t, p.server.Close(), websocket.ErrConnectionClosed)
		isError(t, p.server.Ping(t.Context(), nil), net.ErrClosed)
	})
	t.Run("by the client", func(t *testing.T) {
		for _, code := range []websocket.StatusCode{0, 1001, 4321} {
			p := connect(t, websocket.Options{}, websocket.Options{}, nil)
			writeFrames(t, p.clientConn, websocket.NewCloseFrame(code, ""))
			msg, err := p.server.ReadMessage(t.Context())
			equal(t, msg, nil)
			equal(t, err, io.EOF)
			if code == 0 {
				code = websocket.StatusNormalClosure
			}
			wantClose(t, p.clientConn, code, "")
			wantDisconnect(t, p.clientConn)
		}
	})
	t.Run("the peer disconnects", func(t *testing.T) {
		p := connect(t, websocket.Options{}, websocket.Options{}, nil)
		closed := inBackground(t, p.server.Close)
		wantClose(t, p.clientConn, 1000, "")
		noError(t, p.clientConn.Close())
		noError(t, closed())
	})
	t.Run("without a Close frame", func(t *testing.T) {
		p := connect(t, websocket.Options{ReadTimeout: time.Hour}, websocket.Options{}, nil)
		noError(t, p.clientConn.Close())
		_, err := p.server.ReadMessage(t.Context())
		isError(t, err, io.EOF)
	})
	t.Run("while another goroutine reads", func(t *testing.T) {
		p := connect(t, websocket.Options{}, websocket.Options{}, nil)
		served := inBackground(t, func() error { return p.client.Handle(t.Context(), websocket.EchoHandler) })
		read := inBackground(t, func() error { _, err := p.server.ReadMessage(t.Context()); return err })
		noError(t, p.server.WriteMessage(t.Context(), &websocket.Message{Payload: []byte("push")}))
		if err := read(); err != nil {
			t.Fatal(err)
		}
		read = inBackground(t, func() error { _, err := p.server.ReadMessage(t.Context()); return err })
		noError(t, p.server.CloseWithStatus(4000, "enough"))
		if err := read(); err != io.EOF && !errors.Is(err, websocket.ErrConnectionClosed) {
			t.Fatal(err)
		}
		noError(t, served())
	})
	t.Run("by both at once", func(t *testing.T) {
		for range 50 {
			p := connect(t, websocket.Options{}, websocket.Options{}, nil)
			server, client := inBackground(t, p.server.Close), inBackground(t, p.client.Close)
			noError(t, server())
			noError(t, client())
		}
	})
}

func TestFailedWrites(t *testing.T) {
	fault := errors.New("fault")
	failing := func(times int64) func(net.Conn) net.Conn {
		var count atomic.Int64
		return func(conn net.Conn) net.Conn {
			return faultyConn{conn, func(conn net.Conn, p []byte) (int, error) {
				if count.Add(1) <= times {
					return 0, fault
				}
				return conn.Write(p)
			}}
		}
	}
	always := int64(1 << 60)

	p := connect(t, websocket.Options{}, websocket.Options{}, failing(always))
	writeFrames(t, p.clientConn, websocket.NewCloseFrame(1000, ""))
	_, err := p.server.ReadMessage(t.Context())
	isError(t, err, fault)

	p = connect(t, websocket.Options{}, websocket.Options{}, failing(always))
	isError(t, p.server.Close(), fault)
	_, err = p.client.ReadMessage(t.Context())
	isError(t, err, io.EOF)

	p = connect(t, websocket.Options{}, websocket.Options{}, failing(always))
	writeFrames(t, p.clientConn, websocket.NewFrame(websocket.OpcodePing, true, nil))
	_, err = p.server.ReadMessage(t.Context())
	isError(t, err, fault)

	// A write of which nothing was sent leaves the connection as it was.
	p = connect(t, websocket.Options{}, websocket.Options{}, failing(1))
	isError(t, p.server.WriteMessage(t.Context(), &websocket.Message{Payload: []byte("lost")}), fault)
	noError(t, p.server.WriteMessage(t.Context(), &websocket.Message{Payload: []byte("sent")}))
	equal(t, string(readFrame(t, p.clientConn).Payload), "sent")

	p = connect(t, websocket.Options{}, websocket.Options{}, failing(1))
	served := inBackground(t, func() error { return p.server.Handle(t.Context(), websocket.EchoHandler) })
	writeFrames(t, p.clientConn, text("hello"))
	wantClose(t, p.clientConn, websocket.StatusAbnormalClose, "error writing frame")
	isError(t, served(), fault)

	// After a part of a frame nothing may follow.
	p = connect(t, websocket.Options{}, websocket.Options{}, func(conn net.Conn) net.Conn {
		return faultyConn{conn, func(conn net.Conn, p []byte) (int, error) {
			n, _ := conn.Write(p[:1])
			return n, fault
		}}
	})
	isError(t, p.server.WriteMessage(t.Context(), &websocket.Message{Payload: []byte("torn")}), fault)
	isError(t, p.server.WriteMessage(t.Context(), &websocket.Message{}), net.ErrClosed)
	isError(t, p.server.Close(), net.ErrClosed)
	received, _ := io.ReadAll(p.clientConn)
	equal(t, len(received), 1)
}

// The peer may not learn the addresses of this end, which may be behind a proxy.
func TestReasonsNameNoAddress(t *testing.T) {
	p := connect(t, websocket.Options{ReadTimeout: time.Millisecond, CloseTimeout: time.Second}, websocket.Options{}, nil)
	err := p.server.Handle(t.Context(), websocket.EchoHandler)
	if !strings.Contains(err.Error(), "127.0.0.1") {
		t.Fatalf("got error %v", err)
	}
	equal(t, string(readFrame(t, p.clientConn).Payload[2:]), "error reading frame header")
}

func TestHandlers(t *testing.T) {
	fault := errors.New("application fault")
	handler := func(_ context.Context, msg *websocket.Message) (*websocket.Message, error) {
		switch string(msg.Payload) {
		case "fail":
			return nil, fault
		case "panic":
			panic("handler")
		case "policy":
			return nil, fmt.Errorf("wrapped: %w", websocket.ErrMessageTooLarge)
		case "silence":
			return nil, nil
		}
		return msg, nil
	}
	p := connect(t, websocket.Options{}, websocket.Options{}, nil)
	served := inBackground(t, func() error { return p.server.Handle(t.Context(), handler) })
	writeFrames(t, p.clientConn, text("silence"), text("ok"), text("fail"))
	equal(t, string(readFrame(t, p.clientConn).Payload), "ok")
	wantClose(t, p.clientConn, websocket.StatusInternalError, fault.Error())
	writeFrames(t, p.clientConn, websocket.NewCloseFrame(1000, ""))
	wantDisconnect(t, p.clientConn)
	equal(t, served(), fault)

	p = connect(t, websocket.Options{}, websocket.Options{}, nil)
	served = inBackground(t, func() error { return p.server.Handle(t.Context(), handler) })
	writeFrames(t, p.clientConn, text("policy"))
	wantClose(t, p.clientConn, websocket.StatusTooLarge, websocket.ErrMessageTooLarge.Error())
	writeFrames(t, p.clientConn, websocket.NewCloseFrame(1009, ""))
	isError(t, served(), websocket.ErrMessageTooLarge)

	p = connect(t, websocket.Options{}, websocket.Options{}, nil)
	served = inBackground(t, func() (err error) {
		defer func() { err = fmt.Errorf("panic: %v", recover()) }()
		return p.server.Handle(t.Context(), handler)
	})
	writeFrames(t, p.clientConn, text("panic"))
	wantClose(t, p.clientConn, websocket.StatusInternalError, "")
	wantDisconnect(t, p.clientConn)
	equal(t, served().Error(), "panic: handler")

	fail := errors.New("write fault")
	p = connect(t, websocket.Options{}, websocket.Options{}, func(conn net.Conn) net.Conn {
		return faultyConn{conn, func(net.Conn, []byte) (int, error) { return 0, fail }}
	})
	writeFrames(t, p.clientConn, text("fail"))
	err := p.server.Handle(t.Context(), handler)
	isError(t, err, fault)
	isError(t, err, fail)
	wantDisconnect(t, p.clientConn)
}

func TestContexts(t *testing.T) {
	t.Run("a read continues after its context", func(t *testing.T) {
		p := connect(t, websocket.Options{}, websocket.Options{}, nil)
		var frames bytes.Buffer
		for _, frame := range []*websocket.Frame{
			websocket.NewFrame(websocket.OpcodeText, false, []byte("one ")),
			websocket.NewFrame(websocket.OpcodePing, true, []byte("ping")),
			websocket.NewFrame(websocket.OpcodeContinuation, true, []byte("two")),
		} {
			noError(t, websocket.WriteFrame(&frames, websocket.NewMaskingKey(), frame))
		}
		var into websocket.Message
		var err error
		for frames.Len() > 0 {
			ctx, cancel := context.WithCancel(t.Context())
			read := inBackground(t, func() error { return p.server.ReadMessageInto(ctx, &into) })
			_, writeErr := p.clientConn.Write(frames.Next(1))
			noError(t, writeErr)
			if frames.Len() > 0 {
				cancel()
			}
			err = read()
			cancel()
			if frames.Len() > 0 {
				isError(t, err, context.Canceled)
				clear(into.Payload) // the caller may use it
			}
		}
		noError(t, err)
		equal(t, string(into.Payload), "one two")
	})
	t.Run("deadline", func(t *testing.T) {
		p := connect(t, websocket.Options{}, websocket.Options{}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := p.server.ReadMessage(ctx)
		isError(t, err, context.DeadlineExceeded)
		writeFrames(t, p.clientConn, text("later"))
		msg, err := p.server.ReadMessage(t.Context())
		noError(t, err)
		equal(t, string(msg.Payload), "later")
	})
	t.Run("Handle between fragments", func(t *testing.T) {
		p := connect(t, websocket.Options{}, websocket.Options{}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		served := inBackground(t, func() error { return p.server.Handle(ctx, websocket.EchoHandler) })
		writeFrames(t, p.clientConn, websocket.NewFrame(websocket.OpcodeText, false, []byte("frame 1")))
		cancel()
		wantClose(t, p.clientConn, websocket.StatusInternalError, context.Canceled.Error())
		isError(t, served(), context.Canceled)
	})
	t.Run("a message is cut between frames", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := connect(t, websocket.Options{MaxFrameSize: 16}, websocket.Options{}, func(conn net.Conn) net.Conn {
			return faultyConn{conn, func(conn net.Conn, p []byte) (int, error) {
				defer cancel()
				return conn.Write(p)
			}}
		})
		isError(t, p.server.WriteMessage(ctx, &websocket.Message{Payload: make([]byte, 32)}), context.Canceled)
		isError(t, p.server.WriteMessage(t.Context(), &websocket.Message{}), net.ErrClosed)
		equal(t, len(readFrame(t, p.clientConn).Payload), 16)
		closed := inBackground(t, p.server.Close)
		wantClose(t, p.clientConn, 1000, "")
		writeFrames(t, p.clientConn, websocket.NewCloseFrame(1000, ""))
		noError(t, closed())
	})
	t.Run("a write to a peer that does not read", func(t *testing.T) {
		p := connect(t, websocket.Options{}, websocket.Options{}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		large := &websocket.Message{Binary: true, Payload: make([]byte, 64<<20)}
		isError(t, p.server.WriteMessage(ctx, large), context.DeadlineExceeded)
	})
	t.Run("waiting for the lock", func(t *testing.T) {
		p := connect(t, websocket.Options{}, websocket.Options{}, nil)
		read := inBackground(t, func() error { _, err := p.server.ReadMessage(t.Context()); return err })
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := p.server.ReadMessage(ctx)
		isError(t, err, context.DeadlineExceeded)
		writeFrames(t, p.clientConn, text("x"), text("y"))
		if err := read(); err != nil {
			isError(t, err, context.DeadlineExceeded)
		}
	})
}

// A Pong that the end of a read's context interrupts is completed by the next read or write.
func TestPongsOutliveTheContextOfTheRead(t *testing.T) {
	for name, next := range map[string]func(t *testing.T, p pair, ctx context.Context) func() error{
		"read": func(t *testing.T, p pair, ctx context.Context) func() error {
			return inBackground(t, func() error { _, err := p.server.ReadMessage(ctx); return err })
		},
		"WriteMessage": func(t *testing.T, p pair, ctx context.Context) func() error {
			return inBackground(t, func() error { return p.server.WriteMessage(ctx, &websocket.Message{Payload: []byte("next")}) })
		},
		"WriteMessages": func(t *testing.T, p pair, ctx context.Context) func() error {
			return inBackground(t, func() error { return p.server.WriteMessages(ctx, &websocket.Message{Payload: []byte("next")}) })
		},
		"WritePrepared": func(t *testing.T, p pair, ctx context.Context) func() error {
			prepared := websocket.PrepareMessage(&websocket.Message{Payload: []byte("next")})
			return inBackground(t, func() error { return p.server.WritePrepared(ctx, prepared) })
		},
		"Close": func(t *testing.T, p pair, _ context.Context) func() error { return inBackground(t, p.server.Close) },
	} {
		for taken := range 3 { // of the 3 bytes of the Pong
			t.Run(fmt.Sprintf("%s after %d bytes", name, taken), func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				p := connect(t, websocket.Options{}, websocket.Options{}, func(conn net.Conn) net.Conn {
					return faultyConn{conn, func(conn net.Conn, p []byte) (int, error) {
						if ctx.Err() != nil {
							return conn.Write(p)
						}
						n, err := conn.Write(p[:taken])
						cancel()
						if err == nil {
							err = os.ErrDeadlineExceeded
						}
						return n, err
					}}
				})
				writeFrames(t, p.clientConn, websocket.NewFrame(websocket.OpcodePing, true, []byte("p")))
				_, err := p.server.ReadMessage(ctx)
				isError(t, err, context.Canceled)
				done := next(t, p, t.Context())
				noError(t, p.clientConn.SetReadDeadline(time.Now().Add(20*time.Second)))
				pong := readFrame(t, p.clientConn)
				equal(t, pong.Opcode(), websocket.OpcodePong)
				equal(t, string(pong.Payload), "p")
				switch name {
				case "read":
					writeFrames(t, p.clientConn, text("to end it"))
				case "Close":
					wantClose(t, p.clientConn, 1000, "")
					writeFrames(t, p.clientConn, websocket.NewCloseFrame(1000, ""))
				default:
					equal(t, string(readFrame(t, p.clientConn).Payload), "next")
				}
				noError(t, done())
				if name != "Close" { // the Pong is not sent again
					writeFrames(t, p.clientConn, websocket.NewFrame(websocket.OpcodePing, true, []byte("q")), text("end"))
					_, err = p.server.ReadMessage(t.Context())
					noError(t, err)
					equal(t, string(readFrame(t, p.clientConn).Payload), "q")
				}
			})
		}
	}
}

// A read that ends while it waits for a writer leaves its Pong to the next read.
func TestPongsWaitForTheWriter(t *testing.T) {
	release, writing := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p := connect(t, websocket.Options{}, websocket.Options{}, func(conn net.Conn) net.Conn {
		return faultyConn{conn, func(conn net.Conn, p []byte) (int, error) {
			once.Do(func() {
				close(writing)
				<-release
			})
			return conn.Write(p)
		}}
	})
	wrote := inBackground(t, func() error { return p.server.WriteMessage(t.Context(), &websocket.Message{Payload: []byte("slow")}) })
	<-writing
	writeFrames(t, p.clientConn, websocket.NewFrame(websocket.OpcodePing, true, []byte("p")))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := p.server.ReadMessage(ctx)
	isError(t, err, context.DeadlineExceeded)
	close(release)
	noError(t, wrote())
	writeFrames(t, p.clientConn, text("next"))
	_, err = p.server.ReadMessage(t.Context())
	noError(t, err)
	equal(t, string(readFrame(t, p.clientConn).Payload), "slow")
	noError(t, p.clientConn.SetReadDeadline(time.Now().Add(20*time.Second)))
	equal(t, readFrame(t, p.clientConn).Opcode(), websocket.OpcodePong)
}

// RFC 6455 §7.1.7 wants the connection to be closed; the caller of ReadMessage decides.
func TestReadContinuesAfterAViolation(t *testing.T) {
	p := connect(t, websocket.Options{MaxFrameSize: 100}, websocket.Options{}, nil)
	writeFrames(t, p.clientConn,
		websocket.NewFrame(websocket.OpcodeContinuation, false, []byte("unexpected")), text("one"),
		websocket.NewFrame(websocket.OpcodeText, true, make([]byte, 5000)), text("two"),
		websocket.NewFrame(websocket.OpcodeText, true, []byte("rsv"), websocket.RSV2), text("three"),
		websocket.NewFrame(websocket.OpcodeText, false, []byte("unfinished")), text("x"), text("four"))
	for _, want := range []any{
		websocket.ErrContinuationUnexpected, "one", websocket.ErrFrameTooLarge, "two", websocket.ErrRSVBitsUnsupported, "three",
		websocket.ErrContinuationExpected, "four",
	} {
		msg, err := p.server.ReadMessage(t.Context())
		if violation, ok := want.(error); ok {
			isError(t, err, violation)
		} else {
			noError(t, err)
			equal(t, string(msg.Payload), want.(string))
		}
	}
}

func TestEOFAtEachByte(t *testing.T) {
	var stream bytes.Buffer
	for _, frame := range []*websocket.Frame{
		websocket.NewFrame(websocket.OpcodeText, false, []byte("a")),
		websocket.NewFrame(websocket.OpcodePing, true, []byte("pp")),
		websocket.NewFrame(websocket.OpcodeContinuation, true, bytes.Repeat([]byte("b"), 200)),
	} {
		noError(t, websocket.WriteFrame(&stream, websocket.NewMaskingKey(), frame))
	}
	for cut := range stream.Len() {
		p := connect(t, websocket.Options{}, websocket.Options{}, nil)
		_, err := p.clientConn.Write(stream.Bytes()[:cut])
		noError(t, err)
		noError(t, p.clientConn.(*net.TCPConn).CloseWrite())
		_, err = p.server.ReadMessage(t.Context())
		want := io.ErrUnexpectedEOF
		if cut == 0 {
			want = io.EOF
		}
		isError(t, err, want)
	}
}

func TestHooks(t *testing.T) {
	var mu sync.Mutex
	var log []string
	note := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		log = append(log, fmt.Sprintf(format, args...))
	}
	hooks := websocket.Hooks{
		OnCloseHandshakeStart: func(key websocket.ClientKey, code websocket.StatusCode, err error) {
			note("%s start %d %v", key, code, err)
		},
		OnCloseHandshakeDone: func(key websocket.ClientKey, code websocket.StatusCode, err error) {
			note("%s done %d %v", key, code, err)
		},
		OnReadError:    func(key websocket.ClientKey, err error) { note("%s read error %v", key, err) },
		OnReadFrame:    func(key websocket.ClientKey, f *websocket.Frame) { note("%s read %v %q", key, f.Opcode(), f.Payload) },
		OnReadMessage:  func(key websocket.ClientKey, m *websocket.Message) { note("%s message %q", key, m.Payload) },
		OnWriteError:   func(key websocket.ClientKey, err error) { note("%s write error %v", key, err) },
		OnWriteFrame:   func(key websocket.ClientKey, f *websocket.Frame) { note("%s write %v %q", key, f.Opcode(), f.Payload) },
		OnWriteMessage: func(key websocket.ClientKey, m *websocket.Message) { note("%s send %q", key, m.Payload) },
	}
	p := connect(t, websocket.Options{Hooks: hooks, MaxFrameSize: 3}, websocket.Options{}, nil)
	writeFrames(t, p.clientConn, websocket.NewFrame(websocket.OpcodeText, false, []byte("ab")),
		websocket.NewFrame(websocket.OpcodePing, true, []byte("p")), websocket.NewFrame(websocket.OpcodeContinuation, true, []byte("cd")))
	msg, err := p.server.ReadMessage(t.Context())
	noError(t, err)
	noError(t, p.server.WriteMessage(t.Context(), msg))
	writeFrames(t, p.clientConn, websocket.NewFrame(websocket.OpcodeContinuation, true, nil))
	_, err = p.server.ReadMessage(t.Context())
	isError(t, err, websocket.ErrContinuationUnexpected)
	closed := inBackground(t, p.server.Close)
	writeFrames(t, p.clientConn, websocket.NewCloseFrame(1000, ""))
	noError(t, closed())
	want := []string{
		`server read Text "ab"`, `server read Ping "p"`, `server write Pong "p"`, `server read Cont "cd"`, `server message "abcd"`,
		`server send "abcd"`, `server write Text "abc"`, `server write Cont "d"`,
		`server read error continuation frame unexpected`,
		`server start 1000 <nil>`, `server write Close "\x03\xe8"`, `server read Close "\x03\xe8"`, `server done 1000 <nil>`,
	}
	equal(t, strings.Join(log, "\n"), strings.Join(want, "\n"))
}

func TestConcurrentWriters(t *testing.T) {
	p := connect(t, websocket.Options{MaxFrameSize: 64}, websocket.Options{}, nil)
	const writers, count = 8, 50
	var wg sync.WaitGroup
	for id := range writers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range count {
				payload := bytes.Repeat([]byte{byte('a' + id)}, 100+id)
				if err := p.server.WriteMessage(t.Context(), &websocket.Message{Payload: payload}); err != nil {
					t.Error(err)
				}
				if err := p.server.Ping(t.Context(), []byte("p")); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	for range writers * count {
		msg, err := p.client.ReadMessage(t.Context())
		noError(t, err)
		equal(t, strings.Trim(string(msg.Payload), string(msg.Payload[:1])), "")
		equal(t, len(msg.Payload), 100+int(msg.Payload[0]-'a'))
	}
	wg.Wait()
}

func TestTracker(t *testing.T) {
	var tracker websocket.Tracker
	noError(t, tracker.Shutdown(t.Context()))
	tracker = websocket.Tracker{}
	var waits []func() error
	for range 5 {
		p := connect(t, websocket.Options{Tracker: &tracker}, websocket.Options{}, nil)
		waits = append(waits, inBackground(t, func() error {
			err := p.server.Handle(t.Context(), websocket.EchoHandler)
			if errors.Is(err, websocket.ErrConnectionClosed) {
				err = nil
			}
			return err
		}), inBackground(t, func() error { return p.client.Handle(t.Context(), websocket.EchoHandler) }))
	}
	equal(t, tracker.Len(), 5)
	noError(t, tracker.Shutdown(t.Context()))
	equal(t, tracker.Len(), 0)
	for _, wait := range waits {
		noError(t, wait())
	}
	// A connection that opens later is closed; one whose peer is silent is closed when the context ends.
	p := connect(t, websocket.Options{Tracker: &tracker, CloseTimeout: time.Hour}, websocket.Options{}, nil)
	wantClose(t, p.clientConn, websocket.StatusGoingAway, "")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	isError(t, tracker.Shutdown(ctx), context.DeadlineExceeded)
	wantDisconnect(t, p.clientConn)
	equal(t, tracker.Len(), 0)
}

// Connections that open while Shutdown waits are closed when its context ends, and later ones at once.
func TestTrackerAborts(t *testing.T) {
	var tracker websocket.Tracker
	options := websocket.Options{Tracker: &tracker, CloseTimeout: time.Hour}
	early := connect(t, options, websocket.Options{}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait := inBackground(t, func() error { return tracker.Shutdown(ctx) })
	wantClose(t, early.clientConn, websocket.StatusGoingAway, "")
	late := connect(t, options, websocket.Options{}, nil)
	wantClose(t, late.clientConn, websocket.StatusGoingAway, "")
	cancel()
	isError(t, wait(), context.Canceled)
	wantDisconnect(t, early.clientConn)
	wantDisconnect(t, late.clientConn)
	equal(t, tracker.Len(), 0)
	wantDisconnect(t, connect(t, options, websocket.Options{}, nil).clientConn)
}
