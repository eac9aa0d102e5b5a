package websocket_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	websocket "github.com/wireloom/wireloom/go"
)

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
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	err = inBackground(t, func() error {
		_, response, err := websocket.Dial(ctx, "ws://"+listener.Addr().String(), websocket.DialOptions{})
		if response == nil || response.StatusCode != 403 {
			return fmt.Errorf("no response: %w", err)
		}
		return err
	})()
	if err == nil || strings.HasPrefix(err.Error(), "no response") {
		t.Fatal(err)
	}
}
