package websocket_test

import (
	"bytes"
	"compress/flate"
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	websocket "github.com/wireloom/wireloom/go"
)

// acceptCompressed returns a server's connection that compresses without context takeover; its large writes go to write.
func acceptCompressed(t testing.TB, level int, write func(p []byte)) *websocket.Websocket {
	t.Helper()
	opts := websocket.Options{
		Compression: &websocket.Compression{Level: level}, MaxFrameSize: 1 << 30,
		CloseTimeout: time.Millisecond, // nobody reads
	}
	accepted := make(chan *websocket.Websocket, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, opts)
		if err != nil {
			t.Error(err)
		}
		accepted <- ws
	}))
	server.Listener = wrappedListener{server.Listener, func(conn net.Conn) net.Conn {
		return &faultyConn{conn, func(conn net.Conn, p []byte) (int, error) {
			if len(p) < 1000 {
				return conn.Write(p) // of the handshake
			}
			write(p)
			return len(p), nil
		}}
	}}
	server.Start()
	t.Cleanup(server.Close)
	client, _, err := websocket.Dial(t.Context(), wsURL(server), websocket.DialOptions{Options: opts})
	noError(t, err)
	t.Cleanup(func() { _ = client.CloseWithStatus(1000, "") })
	return <-accepted
}

// words returns text that the levels of compression compress differently.
func words(n int) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	var text []byte
	for len(text) < n {
		text = append(text, vocabulary[random.IntN(len(vocabulary))]...)
	}
	return text
}

var vocabulary = []string{"message ", "masking ", "mask ", "frame ", "fragment ", "fragments ", "connection ", "connect ", "close "}

// Connections that write a prepared message at the same time share one compression.
func TestPreparedMessagesAreCompressedOnce(t *testing.T) {
	prepared := websocket.PrepareMessage(&websocket.Message{Payload: words(1 << 20)})
	var mu sync.Mutex
	frames := make(map[*byte]bool)
	var ends []*websocket.Websocket
	for range 8 {
		ends = append(ends, acceptCompressed(t, 9, func(p []byte) {
			mu.Lock()
			defer mu.Unlock()
			frames[&p[0]] = true
		}))
	}
	var wg sync.WaitGroup
	for _, ws := range ends {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := ws.WritePrepared(context.Background(), prepared); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	equal(t, len(frames), 1)
}

// A level outside of those of compress/flate is the nearest one.
func TestLevelsAreClamped(t *testing.T) {
	message := &websocket.Message{Payload: words(100_000)}
	for level, nearest := range map[int]int{12: flate.BestCompression, 9: flate.BestCompression, -2: flate.HuffmanOnly, -9: flate.HuffmanOnly} {
		var want bytes.Buffer
		compressor, err := flate.NewWriter(&want, nearest)
		noError(t, err)
		_, err = compressor.Write(message.Payload)
		noError(t, err)
		noError(t, compressor.Flush())
		var got []byte
		ws := acceptCompressed(t, level, func(p []byte) { got = append(got, p...) })
		noError(t, ws.WriteMessage(t.Context(), message))
		if !bytes.HasSuffix(got, want.Bytes()[:want.Len()-4]) {
			t.Errorf("level %d: %d bytes, not those of level %d, %d", level, len(got), nearest, want.Len())
		}
	}
}
