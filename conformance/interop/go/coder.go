package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
)

func coderClient(base string) error {
	modes := []websocket.CompressionMode{
		websocket.CompressionDisabled, websocket.CompressionContextTakeover, websocket.CompressionNoContextTakeover,
	}
	for _, mode := range modes {
		if err := coderTalk(base, mode); err != nil {
			return fmt.Errorf("compression mode %d: %w", mode, err)
		}
	}
	return nil
}

func coderTalk(base string, mode websocket.CompressionMode) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	socket, _, err := websocket.Dial(ctx, base+"/echo", &websocket.DialOptions{CompressionMode: mode})
	if err != nil {
		return err
	}
	defer socket.CloseNow()
	socket.SetReadLimit(-1)
	for _, message := range messages() {
		if err := socket.Write(ctx, websocket.MessageBinary, message); err != nil {
			return err
		}
		kind, back, err := socket.Read(ctx)
		if err != nil {
			return err
		}
		if kind != websocket.MessageBinary || !bytes.Equal(back, message) {
			return fmt.Errorf("%d bytes came back as %d", len(message), len(back))
		}
	}
	// A ping needs a concurrent reader.
	reading := make(chan error, 1)
	go func() {
		for number := range 1_000 {
			_, back, err := socket.Read(ctx)
			if err == nil && string(back) != strconv.Itoa(number) {
				err = fmt.Errorf("%d came back as %q", number, back)
			}
			if err != nil {
				reading <- err
				return
			}
		}
		reading <- nil
		socket.Read(ctx)
	}()
	for number := range 1_000 {
		if err := socket.Write(ctx, websocket.MessageText, []byte(strconv.Itoa(number))); err != nil {
			return err
		}
	}
	if err := socket.Ping(ctx); err != nil {
		return err
	}
	if err := <-reading; err != nil {
		return err
	}
	return socket.Close(4321, "bye")
}

func coderEcho(w http.ResponseWriter, r *http.Request) {
	options := websocket.AcceptOptions{
		Subprotocols:    []string{"chat"},
		CompressionMode: websocket.CompressionContextTakeover,
	}
	socket, err := websocket.Accept(w, r, &options)
	if err != nil {
		return
	}
	defer socket.CloseNow()
	socket.SetReadLimit(-1)
	for {
		kind, message, err := socket.Read(r.Context())
		if err != nil || socket.Write(r.Context(), kind, message) != nil {
			return
		}
		if code, asked := strings.CutPrefix(string(message), "close "); asked {
			code, _ := strconv.Atoi(code)
			socket.Close(websocket.StatusCode(code), "as you wish")
			return
		}
	}
}
