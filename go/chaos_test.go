package websocket_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"time"

	websocket "github.com/wireloom/wireloom/go"
)

// All methods at the same time on both ends, with contexts that end at any time: every call returns, no message is mixed up
// with another, and no goroutine is left.
func TestEverythingAtOnce(t *testing.T) {
	before := runtime.NumGoroutine()
	for round := range 6 {
		opts := websocket.Options{
			MaxFrameSize: 1000, CloseTimeout: 200 * time.Millisecond, Compression: &websocket.Compression{ContextTakeover: round%2 == 0},
		}
		p := connect(t, opts, opts, nil)
		var wg sync.WaitGroup
		run := func(f func(ctx context.Context, random *rand.Rand) error) {
			wg.Add(1)
			random := rand.New(rand.NewPCG(uint64(round), rand.Uint64()))
			go func() {
				defer wg.Done()
				for range 200 {
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.IntN(3000))*time.Microsecond)
					err := f(ctx, random)
					cancel()
					if err != nil && ctx.Err() == nil {
						return
					}
				}
			}()
		}
		for _, ws := range []*websocket.Websocket{p.server, p.client} {
			for range 2 {
				run(func(ctx context.Context, _ *rand.Rand) error {
					msg, err := ws.ReadMessage(ctx)
					if err == nil && len(bytes.Trim(msg.Payload, string(msg.Payload[:1]))) != 0 {
						t.Error("messages are mixed up")
					}
					return err
				})
				run(func(ctx context.Context, random *rand.Rand) error {
					payload := bytes.Repeat([]byte{byte('a' + random.IntN(26))}, 1+random.IntN(5000))
					return ws.WriteMessage(ctx, &websocket.Message{Payload: payload})
				})
			}
			run(func(ctx context.Context, _ *rand.Rand) error { return ws.Ping(ctx, []byte("ping")) })
			run(func(_ context.Context, random *rand.Rand) error {
				if random.IntN(100) > 0 {
					time.Sleep(100 * time.Microsecond)
					return nil
				}
				return ws.Close()
			})
		}
		inBackground(t, func() error { wg.Wait(); return nil })()
		_ = p.server.Close()
		_ = p.client.Close()
	}
	noGoroutines(t, before)
}

// A connection closes while writers and the answer of a ping wait for their turn behind a peer that does not read: each call
// ends with an error, and the race detector sees whether one uses something without the lock.
func TestClosingBehindAPeerThatDoesNotRead(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		conn, peer := net.Pipe()
		ws := websocket.New(conn, "", websocket.ServerMode, websocket.Options{CloseTimeout: 20 * time.Millisecond})
		var wg sync.WaitGroup
		fails := func(f func(ctx context.Context) error) {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if f(context.Background()) == nil {
					t.Error("no error")
				}
			}()
		}
		for range 3 {
			fails(func(ctx context.Context) error {
				return ws.WriteMessage(ctx, &websocket.Message{Payload: make([]byte, 500)})
			})
		}
		time.Sleep(time.Millisecond)
		fails(func(ctx context.Context) error { _, err := ws.ReadMessage(ctx); return err })
		noError(t, websocket.WriteFrame(peer, websocket.NewMaskingKey(), websocket.NewFrame(websocket.OpcodePing, true, nil)))
		time.Sleep(time.Millisecond)
		fails(func(context.Context) error { return ws.Close() })
		inBackground(t, func() error { wg.Wait(); return nil })()
		_ = peer.Close()
	}
	noGoroutines(t, before)
}

// noGoroutines waits until no more goroutines run than before.
func noGoroutines(t testing.TB, before int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, %d before\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

func TestDialLeavesNoGoroutine(t *testing.T) {
	server := httptest.NewServer(echoHandler(t, websocket.Options{}))
	defer server.Close()
	before := runtime.NumGoroutine()
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		ws, _, err := websocket.Dial(ctx, wsURL(server), websocket.DialOptions{})
		noError(t, err)
		_, err = ws.ReadMessage(ctx)
		noError(t, err)
		noError(t, ws.Close())
		cancel()
	}
	noGoroutines(t, before)
}
