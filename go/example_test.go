package websocket_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	websocket "github.com/wireloom/wireloom/go"
)

// A server that echoes, and a client.
func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, websocket.Options{ReadTimeout: time.Minute})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := ws.Handle(r.Context(), websocket.EchoHandler); err != nil {
			log.Print(err)
		}
	}))
	defer server.Close()

	ctx := context.Background()
	ws, _, err := websocket.Dial(ctx, strings.Replace(server.URL, "http", "ws", 1), websocket.DialOptions{})
	if err != nil {
		log.Fatal(err)
	}
	if err := ws.WriteMessage(ctx, &websocket.Message{Payload: []byte("hello")}); err != nil {
		log.Fatal(err)
	}
	msg, err := ws.ReadMessage(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", msg.Payload)
	if err := ws.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: hello
}

// A reader that reuses the memory of its message.
func ExampleWebsocket_ReadMessageInto() {
	read := func(ctx context.Context, ws *websocket.Websocket, handle func([]byte)) error {
		var msg websocket.Message
		for {
			if err := ws.ReadMessageInto(ctx, &msg); err != nil {
				return err
			}
			handle(msg.Payload) // must not keep it
		}
	}
	_ = read
}

// A publisher that frames and compresses a message once for all subscribers.
func ExamplePrepareMessage() {
	publish := func(ctx context.Context, subscribers []*websocket.Websocket, payload []byte) {
		prepared := websocket.PrepareMessage(&websocket.Message{Payload: payload})
		for _, ws := range subscribers {
			if err := ws.WritePrepared(ctx, prepared); err != nil {
				_ = ws.Close()
			}
		}
	}
	publish(context.Background(), nil, []byte("news"))
}

// A server that closes its connections at shutdown.
func ExampleTracker() {
	var tracker websocket.Tracker
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, websocket.Options{Tracker: &tracker})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = ws.Handle(r.Context(), websocket.EchoHandler)
	})}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println(tracker.Shutdown(ctx), server.Shutdown(ctx))
	// Output: <nil> <nil>
}
