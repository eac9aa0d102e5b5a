package websocket_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	websocket "github.com/wireloom/wireloom/go"
)

// A peer that sends while the connection ends receives all that was written before, and the Close frame.
func TestEndsLoseNothing(t *testing.T) {
	const count, size = 60, 4 << 10
	var large bytes.Buffer
	noError(t, websocket.WriteFrame(&large, websocket.NewMaskingKey(), websocket.NewFrame(websocket.OpcodeBinary, true, make([]byte, 1<<20))))
	silent := func(context.Context, *websocket.Message) (*websocket.Message, error) { return nil, nil }
	for name, end := range map[string]struct {
		first *websocket.Frame // of the peer, before the large one
		code  websocket.StatusCode
		end   func(ws *websocket.Websocket, ctx context.Context) error
	}{
		"violation": {text("x"), websocket.StatusTooLarge, func(ws *websocket.Websocket, ctx context.Context) error {
			return ws.Handle(ctx, silent)
		}},
		"context": {text("x"), websocket.StatusInternalError, func(ws *websocket.Websocket, ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ws.Handle(ctx, silent)
		}},
		"panic": {text("x"), websocket.StatusInternalError, func(ws *websocket.Websocket, ctx context.Context) error {
			equal(t, panics(func() {
				_ = ws.Handle(ctx, func(context.Context, *websocket.Message) (*websocket.Message, error) { panic("handler") })
			}), true)
			return errors.New("panic")
		}},
		"violation while closing": {text("x"), websocket.StatusNormalClosure, func(ws *websocket.Websocket, _ context.Context) error {
			return ws.Close()
		}},
		"a message cut short": {text("x"), 0, func(ws *websocket.Websocket, ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			isError(t, ws.WriteMessage(ctx, &websocket.Message{Binary: true, Payload: make([]byte, 64<<20)}), context.DeadlineExceeded)
			return ws.Close()
		}},
		"Close frame": {websocket.NewCloseFrame(1000, ""), websocket.StatusNormalClosure, func(ws *websocket.Websocket, ctx context.Context) error {
			_, err := ws.ReadMessage(ctx)
			return err
		}},
	} {
		for _, transport := range []string{"tcp", "tls"} {
			t.Run(name+" over "+transport, func(t *testing.T) {
				opts := websocket.Options{CloseTimeout: 20 * time.Second}
				var ws *websocket.Websocket
				var client, raw net.Conn
				if transport == "tls" {
					ws, client, raw = connectTLS(t, opts, &tls.Config{})
				} else {
					p := connect(t, opts, websocket.Options{}, nil)
					ws, client, raw = p.server, p.clientConn, p.clientConn
				}
				noError(t, raw.(*net.TCPConn).SetReadBuffer(32<<10)) // so that the rest waits at the server
				for range count {
					noError(t, ws.WriteMessage(t.Context(), &websocket.Message{Binary: true, Payload: make([]byte, size)}))
				}
				writeFrames(t, client, end.first)
				_, err := client.Write(large.Bytes()[:1000])
				noError(t, err)
				sent := inBackground(t, func() error {
					_, err := client.Write(large.Bytes()[1000:])
					return err
				})
				ended := inBackground(t, func() error { return end.end(ws, context.Background()) })
				if ended() == nil {
					t.Fatal("no error")
				}
				noError(t, sent())
				noError(t, client.SetReadDeadline(time.Now().Add(20*time.Second)))
				reader := bufio.NewReader(client)
				for range count {
					equal(t, len(readFrame(t, reader).Payload), size)
				}
				if end.code == 0 {
					return
				}
				wantClose(t, reader, end.code, "")
				_, err = reader.ReadByte()
				equal(t, err, io.EOF) // not a reset
			})
		}
	}
}

// A peer that never disconnects, and sends all the time, is disconnected after CloseTimeout.
func TestLingeringEnds(t *testing.T) {
	before := runtime.NumGoroutine()
	tracker := new(websocket.Tracker)
	p := connect(t, websocket.Options{Tracker: tracker, CloseTimeout: time.Second}, websocket.Options{}, nil)
	served := inBackground(t, func() error { return p.server.Handle(t.Context(), websocket.EchoHandler) })
	writeFrames(t, p.clientConn, websocket.NewFrame(websocket.OpcodeContinuation, true, nil))
	isError(t, served(), websocket.ErrContinuationUnexpected)
	sent := inBackground(t, func() error {
		for {
			if _, err := p.clientConn.Write(make([]byte, 64<<10)); err != nil {
				return err
			}
		}
	})
	_, err := p.server.ReadMessage(t.Context())
	isError(t, err, websocket.ErrConnectionClosed)
	isError(t, p.server.Close(), websocket.ErrConnectionClosed)
	wantClose(t, p.clientConn, websocket.StatusProtocolError, "")
	noError(t, tracker.Shutdown(t.Context()))
	if sent() == nil {
		t.Fatal("no error")
	}
	noGoroutines(t, before)
}
