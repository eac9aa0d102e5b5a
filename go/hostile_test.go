package websocket_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	websocket "github.com/wireloom/wireloom/go"
)

// panics reports whether f panics.
func panics(f func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	f()
	return false
}

// connectCompressed returns two ends that have negotiated permessage-deflate with context takeover. wrap, if not nil, wraps
// the server's socket.
func connectCompressed(t testing.TB, serverOpts, clientOpts websocket.Options, wrap func(net.Conn) net.Conn) pair {
	t.Helper()
	takeover := &websocket.Compression{ContextTakeover: true, MinSize: 1}
	serverOpts.Compression, clientOpts.Compression = takeover, takeover
	accepted := make(chan *websocket.Websocket, 1)
	opened := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, serverOpts)
		if err != nil {
			t.Error(err)
		}
		accepted <- ws
	}))
	if wrap != nil {
		opened.Listener = wrappedListener{opened.Listener, wrap}
	}
	opened.Start()
	t.Cleanup(opened.Close)
	p := pair{}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (_ net.Conn, err error) {
		p.clientConn, err = new(net.Dialer).DialContext(ctx, network, address)
		return p.clientConn, err
	}}
	var err error
	p.client, _, err = websocket.Dial(t.Context(), wsURL(opened), websocket.DialOptions{Options: clientOpts, Transport: transport})
	noError(t, err)
	p.server = <-accepted
	t.Cleanup(func() { _ = p.clientConn.Close() })
	return p
}

type wrappedListener struct {
	net.Listener
	wrap func(net.Conn) net.Conn
}

func (l wrappedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.wrap(conn), nil
}

// panicOnce is a hook of frames that panics at the frame of this number, from 1.
func panicOnce(at int) func(websocket.ClientKey, *websocket.Frame) {
	count := 0
	return func(websocket.ClientKey, *websocket.Frame) {
		if count++; count == at {
			panic("hook")
		}
	}
}

// referable returns a text to which the compressor refers if it occurs again: compress/flate looks for none of less than 128
// bytes, and in this one for none within.
func referable(seed int) []byte {
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	text := make([]byte, 500)
	for i := range text {
		text[i] = byte('!' + random.IntN(90))
	}
	return text
}

// wantMessage reads a message from the peer of a connection whose hook has panicked.
func wantMessage(t testing.TB, ws *websocket.Websocket, payload string) {
	t.Helper()
	var msg *websocket.Message
	noError(t, inBackground(t, func() (err error) {
		msg, err = ws.ReadMessage(t.Context())
		return err
	})())
	equal(t, string(msg.Payload), payload)
}

// A hook that panics, and whose caller recovers as net/http does, leaves nothing locked, and a connection that the peer
// understands.
func TestPanicsOfHooks(t *testing.T) {
	ctx := context.Background()
	message := &websocket.Message{Payload: referable(1)}
	prepared := websocket.PrepareMessage(message)
	for name, write := range map[string]func(ws *websocket.Websocket) error{
		"WriteMessage":  func(ws *websocket.Websocket) error { return ws.WriteMessage(ctx, message) },
		"WriteMessages": func(ws *websocket.Websocket) error { return ws.WriteMessages(ctx, message, message) },
		"WritePrepared": func(ws *websocket.Websocket) error { return ws.WritePrepared(ctx, prepared) },
		"Ping":          func(ws *websocket.Websocket) error { return ws.Ping(ctx, nil) },
		"Close":         func(ws *websocket.Websocket) error { return ws.Close() },
	} {
		for kind, connect := range map[string]func(testing.TB, websocket.Options, websocket.Options, func(net.Conn) net.Conn) pair{
			"plain": connect, "compressed": connectCompressed,
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				p := connect(t, websocket.Options{Hooks: websocket.Hooks{OnWriteFrame: panicOnce(1)}}, websocket.Options{}, nil)
				equal(t, panics(func() { _ = write(p.server) }), true)
				err := inBackground(t, func() error { return p.server.WriteMessage(ctx, message) })()
				if name == "Close" {
					isError(t, err, websocket.ErrConnectionClosed)
					wantDisconnect(t, p.clientConn)
					return
				}
				noError(t, err)
				wantMessage(t, p.client, string(message.Payload))
				closed := inBackground(t, p.server.Close)
				_, err = p.client.ReadMessage(ctx)
				equal(t, err, io.EOF)
				noError(t, closed())
			})
		}
	}
	for _, kind := range []string{"plain", "compressed"} {
		t.Run("within a message "+kind, func(t *testing.T) {
			opts := websocket.Options{Hooks: websocket.Hooks{OnWriteFrame: panicOnce(2)}, MaxFrameSize: 4}
			p := connect(t, opts, websocket.Options{}, nil)
			if kind == "compressed" {
				p = connectCompressed(t, opts, websocket.Options{}, nil)
			}
			equal(t, panics(func() { _ = p.server.WriteMessage(ctx, message) }), true)
			isError(t, p.server.WriteMessage(ctx, message), net.ErrClosed)
			closed := inBackground(t, p.server.Close)
			_, err := p.client.ReadMessage(ctx)
			equal(t, err, io.EOF)
			noError(t, closed())
		})
	}
}

// The next message must not refer to one whose write failed before its first byte.
func TestWindowsForgetWhatDidNotLeave(t *testing.T) {
	fail := false
	p := connectCompressed(t, websocket.Options{}, websocket.Options{}, func(conn net.Conn) net.Conn {
		return &faultyConn{conn, func(conn net.Conn, p []byte) (int, error) {
			if fail {
				return 0, os.ErrDeadlineExceeded
			}
			return conn.Write(p)
		}}
	})
	for i := range 3 {
		msg := &websocket.Message{Payload: referable(i)}
		fail = true
		isError(t, p.server.WriteMessage(t.Context(), msg), os.ErrDeadlineExceeded)
		isError(t, p.server.WriteMessages(t.Context(), msg), os.ErrDeadlineExceeded)
		fail = false
		for range 2 {
			noError(t, p.server.WriteMessage(t.Context(), msg))
			wantMessage(t, p.client, string(msg.Payload))
		}
	}
}

// The read after a hook has panicked continues behind the frame, in memory of its own.
func TestPanicsOfHooksOfReading(t *testing.T) {
	ctx := context.Background()
	for name, read := range map[string]func(ws *websocket.Websocket, msg *websocket.Message) error{
		"ReadMessage": func(ws *websocket.Websocket, msg *websocket.Message) error {
			got, err := ws.ReadMessage(ctx)
			if err == nil {
				*msg = *got
			}
			return err
		},
		"ReadMessageInto": func(ws *websocket.Websocket, msg *websocket.Message) error { return ws.ReadMessageInto(ctx, msg) },
	} {
		opts := websocket.Options{Hooks: websocket.Hooks{OnReadFrame: panicOnce(1)}}
		for kind, connect := range map[string]func(testing.TB, websocket.Options, websocket.Options, func(net.Conn) net.Conn) pair{
			"a message": connect, "a compressed message": connectCompressed,
		} {
			opts.Hooks.OnReadFrame = panicOnce(1)
			t.Run(name+" of "+kind, func(t *testing.T) {
				p := connect(t, opts, websocket.Options{}, nil)
				message := &websocket.Message{Payload: referable(1)}
				for range 2 {
					noError(t, p.client.WriteMessage(ctx, message))
				}
				var got websocket.Message
				equal(t, panics(func() { _ = read(p.server, &got) }), true)
				noError(t, read(p.server, &got))
				equal(t, string(got.Payload), string(message.Payload))
			})
		}
		t.Run(name+" of a fragment", func(t *testing.T) {
			opts.Hooks.OnReadFrame = panicOnce(1)
			p := connect(t, opts, websocket.Options{}, nil)
			writeFrames(t, p.clientConn, websocket.NewFrame(websocket.OpcodeText, false, []byte("one ")),
				websocket.NewFrame(websocket.OpcodeContinuation, true, []byte("two")))
			memory := make([]byte, 100)
			equal(t, panics(func() { _ = read(p.server, &websocket.Message{Payload: memory}) }), true)
			clear(memory) // the caller may use it
			var got websocket.Message
			noError(t, read(p.server, &got))
			clear(memory)
			equal(t, string(got.Payload), "one two")
		})
		t.Run(name+" of control frames", func(t *testing.T) {
			for _, frame := range []*websocket.Frame{
				websocket.NewFrame(websocket.OpcodePing, true, []byte("p")), websocket.NewCloseFrame(1000, "bye"),
			} {
				opts.Hooks.OnReadFrame = panicOnce(1)
				p := connect(t, opts, websocket.Options{}, nil)
				writeFrames(t, p.clientConn, frame)
				equal(t, panics(func() { _ = read(p.server, new(websocket.Message)) }), true)
				noError(t, p.clientConn.SetReadDeadline(time.Now().Add(20*time.Second)))
				equal(t, string(readFrame(t, p.clientConn).Payload), string(frame.Payload))
			}
		})
	}
}

// A compressed message that was refused is missing in the window: those behind it, which may refer to it, are refused too.
func TestRefusedMessagesAreMissingInTheWindow(t *testing.T) {
	unfinished := websocket.NewFrame(websocket.OpcodeText, false, []byte("unfinished"), websocket.RSV1)
	for name, test := range map[string]struct {
		opts websocket.Options
		want error
	}{
		"message": {websocket.Options{MaxMessageSize: 499}, websocket.ErrMessageTooLarge},
		"frame":   {websocket.Options{MaxFrameSize: 400}, websocket.ErrFrameTooLarge},
		"begun":   {websocket.Options{}, websocket.ErrContinuationExpected},
	} {
		t.Run(name, func(t *testing.T) {
			p := connectCompressed(t, test.opts, websocket.Options{}, nil)
			for i := range 3 { // to which the message behind would refer instead
				other := &websocket.Message{Payload: referable(2 + i)[:300]}
				noError(t, p.client.WriteMessage(t.Context(), other))
				wantMessage(t, p.server, string(other.Payload))
			}
			if name == "begun" {
				writeFrames(t, p.clientConn, unfinished)
			}
			large := referable(1)
			noError(t, p.client.WriteMessage(t.Context(), &websocket.Message{Payload: large}))
			noError(t, p.client.WriteMessage(t.Context(), &websocket.Message{Payload: large[:200]}))
			_, err := p.server.ReadMessage(t.Context())
			isError(t, err, test.want)
			_, err = p.server.ReadMessage(t.Context())
			isError(t, err, websocket.ErrInvalidDeflate)
		})
	}
}

// A batch that a panic ends is not sent by another connection.
func TestBatchesOfAPanicAreNotSent(t *testing.T) {
	ctx := context.Background()
	count := 0
	onFrame := func(websocket.ClientKey, *websocket.Frame) {
		if count++; count%2 == 0 {
			panic("hook")
		}
	}
	secret := &websocket.Message{Payload: []byte("of another connection")}
	for range 20 {
		first := connect(t, websocket.Options{Hooks: websocket.Hooks{OnWriteFrame: onFrame}}, websocket.Options{}, nil)
		equal(t, panics(func() { _ = first.server.WriteMessages(ctx, secret, secret) }), true)
		second := connect(t, websocket.Options{}, websocket.Options{}, nil)
		noError(t, second.server.WriteMessages(ctx, &websocket.Message{Payload: []byte("own")}))
		msg, err := second.client.ReadMessage(ctx)
		noError(t, err)
		equal(t, string(msg.Payload), "own")
	}
}

// watchedContext counts its watches, and calls onDone when it is asked for its channel.
type watchedContext struct {
	context.Context
	watches atomic.Int32
	done    chan struct{}
	onDone  func()
}

func (c *watchedContext) Done() <-chan struct{} {
	c.onDone()
	return c.done
}

func (c *watchedContext) AfterFunc(func()) (stop func() bool) {
	c.watches.Add(1)
	return func() bool {
		c.watches.Add(-1)
		return true
	}
}

// A connection that is closed while a call begins does not stay referenced by the context of that call.
func TestClosedConnectionsWatchNoContext(t *testing.T) {
	for name, call := range map[string]func(ws *websocket.Websocket, ctx context.Context) error{
		"read": func(ws *websocket.Websocket, ctx context.Context) error {
			_, err := ws.ReadMessage(ctx)
			return err
		},
		"write": func(ws *websocket.Websocket, ctx context.Context) error {
			return ws.WriteMessage(ctx, &websocket.Message{Payload: []byte("hello")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			tracker := new(websocket.Tracker)
			p := connect(t, websocket.Options{Tracker: tracker}, websocket.Options{}, nil)
			ended, end := context.WithCancel(context.Background())
			end()
			ctx := &watchedContext{context.Background(), atomic.Int32{}, make(chan struct{}), func() { _ = tracker.Shutdown(ended) }}
			if err := call(p.server, ctx); err == nil {
				t.Fatal("no error of a closed connection")
			}
			equal(t, ctx.watches.Load(), 0)
		})
	}
}

// A server that refuses and never sends the body that it announces holds Dial no longer than its context.
func TestDialEndsWithItsContextInARefusal(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			_, _ = io.WriteString(conn, "HTTP/1.1 403 Forbidden\r\nContent-Length: 100\r\n\r\nbecause")
		}
	}()
	// On a busy machine the head may arrive after the context has ended.
	for timeout, refused := 100*time.Millisecond, false; !refused; timeout *= 2 {
		noError(t, inBackground(t, func() error {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			_, response, err := websocket.Dial(ctx, "ws://"+listener.Addr().String(), websocket.DialOptions{})
			if err == nil {
				return errors.New("no error")
			}
			refused = response != nil && response.StatusCode == 403
			return nil
		})())
	}
}

// The reason of a Close frame is text (RFC 6455 §5.5.1), also if it is made of the text of an error.
func TestReasonsAreText(t *testing.T) {
	for _, reason := range []string{"\xFF", "cut \xE2\x82", strings.Repeat("\xFF", 125), strings.Repeat("a", 122) + "\xFF"} {
		for name, end := range map[string]func(ws *websocket.Websocket) error{
			"CloseWithStatus": func(ws *websocket.Websocket) error {
				return ws.CloseWithStatus(websocket.StatusInternalError, reason)
			},
			"handler": func(ws *websocket.Websocket) error {
				return ws.Handle(t.Context(), func(context.Context, *websocket.Message) (*websocket.Message, error) {
					return nil, errors.New(reason)
				})
			},
		} {
			p := connect(t, websocket.Options{}, websocket.Options{}, nil)
			writeFrames(t, p.clientConn, text("hello"))
			ended := inBackground(t, func() error { return end(p.server) })
			payload := readFrame(t, p.clientConn).Payload
			if len(payload) > 125 || !utf8.Valid(payload[2:]) {
				t.Errorf("%s: %q: a payload of %d bytes, %q", name, reason, len(payload), payload)
			}
			_ = p.clientConn.Close()
			_ = ended()
		}
	}
}

// math.MaxInt means no limit.
func TestLimitsMayBeTheLargestNumber(t *testing.T) {
	opts := websocket.Options{MaxFrameSize: math.MaxInt, MaxMessageSize: math.MaxInt}
	for _, payload := range []string{"", "Hello", strings.Repeat("Hello", 100_000)} {
		p := connectCompressed(t, opts, opts, nil)
		written := inBackground(t, func() error {
			return p.client.WriteMessage(t.Context(), &websocket.Message{Payload: []byte(payload)})
		})
		wantMessage(t, p.server, payload)
		noError(t, written())
	}
}

// Headers that announce large frames reserve little before the payload arrives.
func TestAnnouncedLengthsCostLittle(t *testing.T) {
	const connections, size = 64, 16 << 20
	opts := websocket.Options{MaxFrameSize: size, MaxMessageSize: size}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	before := heapInUse()
	for range connections {
		header := []byte{0x82, 0xFF, 0, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 4}
		read := make(chan struct{})
		p := connect(t, opts, opts, func(conn net.Conn) net.Conn {
			return &payloadConn{Conn: conn, header: len(header), read: read}
		})
		go func() { _, _ = p.server.ReadMessage(ctx) }()
		_, err := p.clientConn.Write(header)
		noError(t, err)
		// There is room for the payload once it is read.
		select {
		case <-read:
		case <-time.After(20 * time.Second):
			t.Fatal("the payload is not read")
		}
	}
	if each := (heapInUse() - before) / connections; each > 128<<10 {
		t.Errorf("%d bytes for each header", each)
	}
}

// payloadConn closes read when a reader that has the header reads on.
type payloadConn struct {
	net.Conn
	header int
	read   chan struct{}
	once   sync.Once
}

func (c *payloadConn) Read(b []byte) (int, error) {
	if c.header <= 0 {
		c.once.Do(func() { close(c.read) })
	}
	n, err := c.Conn.Read(b)
	c.header -= n
	return n, err
}

func heapInUse() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
