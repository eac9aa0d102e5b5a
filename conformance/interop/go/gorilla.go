package main

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

func gorillaClient(base string) error {
	for _, compressed := range []bool{false, true} {
		if err := gorillaTalk(base, compressed); err != nil {
			return fmt.Errorf("compressed %v: %w", compressed, err)
		}
	}
	_, response, err := websocket.DefaultDialer.Dial(base+"/nothing", nil)
	if err == nil || response == nil || response.StatusCode != http.StatusNotFound {
		return fmt.Errorf("not refused with 404: %v", err)
	}
	return nil
}

func gorillaTalk(base string, compressed bool) error {
	dialer := websocket.Dialer{EnableCompression: compressed}
	socket, _, err := dialer.Dial(base+"/echo", nil)
	if err != nil {
		return err
	}
	defer socket.Close()
	socket.SetReadDeadline(time.Now().Add(time.Minute))
	for _, kind := range []int{websocket.BinaryMessage, websocket.TextMessage} {
		for _, message := range messages() {
			if kind == websocket.TextMessage {
				message = bytes.ReplaceAll(message, []byte{0}, []byte("ä"))
				message = bytes.ToValidUTF8(message, []byte("?"))
			}
			if err := socket.WriteMessage(kind, message); err != nil {
				return err
			}
			came, back, err := socket.ReadMessage()
			if err != nil {
				return err
			}
			if came != kind || !bytes.Equal(back, message) {
				return fmt.Errorf("%d bytes of kind %d came back as %d of %d", len(message), kind, len(back), came)
			}
		}
	}
	// In fragments: gorilla flushes a frame whenever its buffer of 4 KiB is full.
	writer, err := socket.NextWriter(websocket.TextMessage)
	if err != nil {
		return err
	}
	for range 100 {
		if _, err := writer.Write(bytes.Repeat([]byte("z"), 1_000)); err != nil {
			return err
		}
	}
	if err := writer.Close(); err != nil {
		return err
	}
	if _, back, err := socket.ReadMessage(); err != nil || len(back) != 100_000 {
		return fmt.Errorf("fragments came back as %d bytes: %v", len(back), err)
	}
	ponged := ""
	socket.SetPongHandler(func(payload string) error { ponged = payload; return nil })
	if err := socket.WriteMessage(websocket.PingMessage, []byte("are you there")); err != nil {
		return err
	}
	// gorilla hears a pong only while it reads a message.
	for _, text := range []string{"after", "later"} {
		if err := socket.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
			return err
		}
		if _, _, err := socket.ReadMessage(); err != nil {
			return err
		}
	}
	if ponged != "are you there" {
		return fmt.Errorf("no pong but %q", ponged)
	}
	bye := websocket.FormatCloseMessage(4321, "bye")
	if err := socket.WriteMessage(websocket.CloseMessage, bye); err != nil {
		return err
	}
	if _, _, err := socket.ReadMessage(); !websocket.IsCloseError(err, 4321) {
		return fmt.Errorf("closed with %v", err)
	}
	return nil
}

var gorillaUpgrader = websocket.Upgrader{EnableCompression: true, Subprotocols: []string{"chat"}}

func gorillaEcho(w http.ResponseWriter, r *http.Request) {
	socket, err := gorillaUpgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer socket.Close()
	for {
		kind, message, err := socket.ReadMessage()
		if err != nil || socket.WriteMessage(kind, message) != nil {
			return
		}
		if code, asked := strings.CutPrefix(string(message), "close "); asked {
			code, _ := strconv.Atoi(code)
			socket.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(code, "as you wish"))
			// The answer.
			socket.ReadMessage()
			return
		}
	}
}
