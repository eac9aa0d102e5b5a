package websocket_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	websocket "github.com/wireloom/wireloom/go"
)

// echoHandler accepts with the options and greets before it echoes, so that the first message may arrive with the response.
func echoHandler(t testing.TB, opts websocket.Options) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, opts)
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		if err := ws.WriteMessage(r.Context(), &websocket.Message{Payload: []byte("greeting")}); err != nil {
			t.Error(err)
		}
		if err := ws.Handle(r.Context(), websocket.EchoHandler); err != nil {
			t.Error(err)
		}
	})
}

func wsURL(server *httptest.Server) string { return strings.Replace(server.URL, "http", "ws", 1) }

func roundTrip(t testing.TB, ws *websocket.Websocket, payload []byte) {
	t.Helper()
	wrote := inBackground(t, func() error { return ws.WriteMessage(t.Context(), &websocket.Message{Payload: payload}) })
	msg, err := ws.ReadMessage(t.Context())
	noError(t, err)
	noError(t, wrote())
	equal(t, bytes.Equal(msg.Payload, payload), true)
}

func TestDial(t *testing.T) {
	opts := websocket.Options{Subprotocols: []string{"b", "a"}}
	plain := httptest.NewServer(echoHandler(t, opts))
	defer plain.Close()
	secure := httptest.NewTLSServer(echoHandler(t, opts))
	defer secure.Close()
	for _, server := range []*httptest.Server{plain, secure} {
		ctx, cancel := context.WithCancel(t.Context())
		ws, response, err := websocket.Dial(ctx, wsURL(server)+"/path?q#fragment", websocket.DialOptions{
			Options:   websocket.Options{Subprotocols: []string{"a", "b"}, ReadTimeout: time.Minute},
			Transport: server.Client().Transport,
		})
		noError(t, err)
		cancel() // it bounded the handshake
		equal(t, response.StatusCode, 101)
		equal(t, ws.Subprotocol(), "b")
		msg, err := ws.ReadMessage(t.Context())
		noError(t, err)
		equal(t, string(msg.Payload), "greeting")
		roundTrip(t, ws, []byte("hello"))
		roundTrip(t, ws, bytes.Repeat([]byte("0123456789"), 20_000))
		noError(t, ws.Close())
	}
}

// A program without Options.Subprotocols selects one by itself, in the fields of the response.
func TestSubprotocolOfTheApplication(t *testing.T) {
	for _, test := range []struct {
		supported []string
		want      string
	}{{nil, "app"}, {[]string{}, ""}, {[]string{"b"}, "b"}} {
		selected := make(chan string, 1)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Sec-WebSocket-Protocol", "app")
			ws, err := websocket.Accept(w, r, websocket.Options{Subprotocols: test.supported})
			noError(t, err)
			selected <- ws.Subprotocol()
			_ = ws.Close()
		}))
		ws, _, err := websocket.Dial(t.Context(), wsURL(server), websocket.DialOptions{
			Options: websocket.Options{Subprotocols: []string{"app", "b"}},
		})
		noError(t, err)
		equal(t, ws.Subprotocol(), test.want)
		equal(t, <-selected, test.want)
		_, err = ws.ReadMessage(t.Context())
		isError(t, err, io.EOF)
		server.Close()
	}
}

func TestDialThroughAProxy(t *testing.T) {
	server := httptest.NewTLSServer(echoHandler(t, websocket.Options{}))
	defer server.Close()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		equal(t, r.Method, http.MethodConnect)
		there, err := net.Dial("tcp", r.Host)
		noError(t, err)
		w.WriteHeader(http.StatusOK)
		here, buffered, err := http.NewResponseController(w).Hijack()
		noError(t, err)
		go func() {
			_, _ = io.Copy(there, buffered)
			_ = there.Close()
		}()
		_, _ = io.Copy(here, there)
		_ = here.Close()
	}))
	defer proxy.Close()
	address, err := url.Parse(proxy.URL)
	noError(t, err)
	transport := server.Client().Transport.(*http.Transport).Clone()
	transport.Proxy = http.ProxyURL(address)
	ws, _, err := websocket.Dial(t.Context(), wsURL(server), websocket.DialOptions{Transport: transport})
	noError(t, err)
	msg, err := ws.ReadMessage(t.Context())
	noError(t, err)
	equal(t, string(msg.Payload), "greeting")
	roundTrip(t, ws, []byte("hello"))
	noError(t, ws.Close())
}

func TestDialIsRefused(t *testing.T) {
	respond := func(status int, fields ...string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for i := 0; i < len(fields); i += 2 {
				w.Header().Set(fields[i], fields[i+1])
			}
			w.WriteHeader(status)
			if status != 101 {
				_, _ = io.WriteString(w, strings.Repeat("reason ", 1000))
			}
		})
	}
	accepting := func(fields ...string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for i := 0; i < len(fields); i += 2 {
				w.Header().Set(fields[i], fields[i+1])
			}
			_, _ = websocket.Handshake(w, r)
		})
	}
	for name, handler := range map[string]http.Handler{
		"status":        respond(403),
		"redirection":   respond(302, "Location", "/elsewhere"),
		"no accept":     respond(101, "Connection", "upgrade", "Upgrade", "websocket"),
		"other upgrade": respond(101, "Connection", "upgrade", "Upgrade", "h2c"),
		"subprotocol":   accepting("Sec-WebSocket-Protocol", "unknown"),
		"extension":     accepting("Sec-WebSocket-Extensions", "permessage-deflate"),
		"origin":        echoHandler(t, websocket.Options{CheckOrigin: websocket.SameOrigin}),
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(handler)
			defer server.Close()
			header := http.Header{"Origin": {"https://elsewhere.example"}}
			_, response, err := websocket.Dial(t.Context(), wsURL(server), websocket.DialOptions{Header: header})
			if err == nil || !strings.HasPrefix(err.Error(), "websocket: dial: ") {
				t.Fatalf("got error %v", err)
			}
			body, err := io.ReadAll(response.Body)
			noError(t, err)
			if name == "status" {
				equal(t, len(body), 4<<10)
			}
		})
	}
	server := httptest.NewServer(echoHandler(t, websocket.Options{CheckOrigin: websocket.SameOrigin}))
	defer server.Close()
	ws, _, err := websocket.Dial(t.Context(), wsURL(server), websocket.DialOptions{Header: http.Header{"Origin": {server.URL}}})
	noError(t, err)
	noError(t, ws.Close())
	_, _, err = websocket.Dial(t.Context(), "ftp://localhost", websocket.DialOptions{})
	equal(t, err != nil, true)
}

func TestDialEndsWithItsContext(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	defer listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	dialed := inBackground(t, func() error {
		_, _, err := websocket.Dial(ctx, "ws://"+listener.Addr().String(), websocket.DialOptions{})
		return err
	})
	conn, err := listener.Accept()
	noError(t, err)
	defer conn.Close()
	// Before the request the transport would keep the connection for another one.
	_, err = io.ReadFull(conn, make([]byte, 1))
	noError(t, err)
	cancel()
	isError(t, dialed(), context.Canceled)
	_, err = io.Copy(io.Discard, conn) // the request, and the end
	if err != nil && !errors.Is(err, io.EOF) {
		t.Log(err)
	}
}

func TestCompression(t *testing.T) {
	json := []byte(strings.Repeat(`{"name":"wireloom","values":[1,2,3]},`, 3000))
	takeover := &websocket.Compression{ContextTakeover: true, MinSize: 1}
	single := &websocket.Compression{Level: 9}
	for _, server := range []*websocket.Compression{nil, single, takeover} {
		for _, client := range []*websocket.Compression{nil, single, takeover} {
			opened := httptest.NewServer(echoHandler(t, websocket.Options{Compression: server}))
			received := 0
			hooks := websocket.Hooks{OnReadFrame: func(_ websocket.ClientKey, f *websocket.Frame) { received += len(f.Payload) }}
			ws, _, err := websocket.Dial(t.Context(), wsURL(opened), websocket.DialOptions{
				Options: websocket.Options{Compression: client, Hooks: hooks},
			})
			noError(t, err)
			_, err = ws.ReadMessage(t.Context())
			noError(t, err)
			for _, payload := range [][]byte{json, json[:200], {}, json[:1], json[:50_000], json} {
				roundTrip(t, ws, payload)
			}
			if server != nil && client != nil && received > 20_000 || server == nil && received < 200_000 {
				t.Errorf("%+v, %+v: received %d bytes", server, client, received)
			}
			noError(t, ws.Close())
			opened.Close()
		}
	}
}

func TestPreparedMessages(t *testing.T) {
	for _, payload := range []string{"", "short", strings.Repeat("compressible ", 1000), strings.Repeat("long", 10_000)} {
		prepared := websocket.PrepareMessage(&websocket.Message{Payload: []byte(payload)})
		for _, opts := range []websocket.Options{
			{}, {Compression: &websocket.Compression{}}, {Compression: &websocket.Compression{ContextTakeover: true}},
		} {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ws, err := websocket.Accept(w, r, opts)
				if err != nil {
					t.Error(err)
					return
				}
				for range 2 {
					if err := ws.WritePrepared(r.Context(), prepared); err != nil {
						t.Error(err)
					}
				}
				if err := ws.Close(); err != nil {
					t.Error(err)
				}
			}))
			ws, _, err := websocket.Dial(t.Context(), wsURL(server), websocket.DialOptions{Options: opts})
			noError(t, err)
			for range 2 {
				msg, err := ws.ReadMessage(t.Context())
				noError(t, err)
				equal(t, string(msg.Payload), payload)
			}
			_, err = ws.ReadMessage(t.Context())
			equal(t, err, io.EOF)
			server.Close()
		}
	}
	p := connect(t, websocket.Options{}, websocket.Options{}, nil)
	prepared := websocket.PrepareMessage(&websocket.Message{Binary: true, Payload: []byte{1}})
	noError(t, p.client.WritePrepared(t.Context(), prepared))
	msg, err := p.server.ReadMessage(t.Context())
	noError(t, err)
	equal(t, msg.Binary && msg.Payload[0] == 1, true)
}

func TestBatches(t *testing.T) {
	var msgs []*websocket.Message
	for i, size := range []int{0, 1, 125, 5000, 20, 60_000, 10, 10, 300_000, 4096, 65_000, 65_000, 65_000, 7} {
		msgs = append(msgs, &websocket.Message{Binary: true, Payload: bytes.Repeat([]byte{byte(i)}, size)})
	}
	large := websocket.Options{MaxFrameSize: 1 << 20, MaxMessageSize: 1 << 20}
	for _, opts := range []websocket.Options{large, {MaxFrameSize: 10_000, MaxMessageSize: 1 << 20}} {
		p := connect(t, opts, opts, nil)
		for _, ends := range [][2]*websocket.Websocket{{p.server, p.client}, {p.client, p.server}} {
			wrote := inBackground(t, func() error { return ends[0].WriteMessages(t.Context(), msgs...) })
			for _, want := range msgs {
				got, err := ends[1].ReadMessage(t.Context())
				noError(t, err)
				equal(t, bytes.Equal(got.Payload, want.Payload), true)
			}
			noError(t, wrote())
		}
	}
}
