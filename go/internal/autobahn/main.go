// Command autobahn echoes for the Autobahn test suite, with permessage-deflate.
//
//	autobahn server             prints the address on which it listens
//	autobahn client URL AGENT   runs every case of a fuzzing server
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	websocket "github.com/wireloom/wireloom/go"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "autobahn:", err)
		os.Exit(1)
	}
}

// options let the largest cases pass, and compress with context takeover, which the suite tests most.
var options = websocket.Options{
	MaxFrameSize:   64 << 20,
	MaxMessageSize: 64 << 20,
	Compression:    &websocket.Compression{ContextTakeover: true, MinSize: 1},
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "server":
		return serve()
	case len(args) == 3 && args[0] == "client":
		return client(args[1], args[2])
	}
	return errors.New("usage: autobahn server | client URL AGENT")
}

func serve() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, options)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = ws.Handle(r.Context(), websocket.EchoHandler) // the suite judges what the peer saw
	}))
}

// client runs the cases of a fuzzing server, one after another.
func client(target, agent string) error {
	target = strings.TrimSuffix(target, "/")
	count := 0
	ctx := context.Background()
	read := func(_ context.Context, msg *websocket.Message) (_ *websocket.Message, err error) {
		count, err = strconv.Atoi(string(msg.Payload))
		return nil, err
	}
	if err := session(ctx, target+"/getCaseCount", read); err != nil {
		return err
	}
	for number := 1; number <= count; number++ {
		address := fmt.Sprintf("%s/runCase?case=%d&agent=%s", target, number, url.QueryEscape(agent))
		if err := session(ctx, address, websocket.EchoHandler); errors.Is(err, errDial) {
			return fmt.Errorf("case %d: %w", number, err)
		}
	}
	return session(ctx, target+"/updateReports?agent="+url.QueryEscape(agent), websocket.EchoHandler)
}

var errDial = errors.New("cannot connect")

func session(ctx context.Context, address string, handler websocket.Handler) error {
	dial, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ws, _, err := websocket.Dial(dial, address, websocket.DialOptions{Options: options})
	if err != nil {
		return fmt.Errorf("%w: %w", errDial, err)
	}
	return ws.Handle(ctx, handler)
}
