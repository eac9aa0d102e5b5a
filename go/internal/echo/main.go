// Command echo is an echo server and client for conformance suites: it speaks the protocol of Autobahn's fuzzing server and
// client.
//
//	echo serve [-addr 127.0.0.1:0] [-compress] [-takeover]    prints "listening on ADDRESS"; ends with its standard input
//	echo client -url ws://127.0.0.1:9001 -agent NAME [-compress] [-takeover]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	websocket "github.com/wireloom/wireloom/go"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: echo serve | client [FLAG…]")
	}
	flags := flag.NewFlagSet("echo "+args[0], flag.ExitOnError)
	addr := flags.String("addr", "127.0.0.1:0", "address of the server")
	target := flags.String("url", "ws://127.0.0.1:9001", "address of the fuzzing server")
	agent := flags.String("agent", "wireloom-go", "name in the reports")
	compress := flags.Bool("compress", false, "permessage-deflate")
	takeover := flags.Bool("takeover", false, "permessage-deflate with context takeover")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	opts := websocket.Options{MaxFrameSize: 64 << 20, MaxMessageSize: 64 << 20}
	if *compress || *takeover {
		opts.Compression = &websocket.Compression{ContextTakeover: *takeover, MinSize: 1}
	}
	switch args[0] {
	case "serve":
		return serve(*addr, opts)
	case "client":
		return client(*target, *agent, opts)
	}
	return fmt.Errorf("unknown command %q", args[0])
}

func serve(addr string, opts websocket.Options) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, opts)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = ws.Handle(r.Context(), websocket.EchoHandler) // the suite judges what the peer saw
	}))
}

// client runs the cases of a fuzzing server, one after another.
func client(target, agent string, opts websocket.Options) error {
	count := 0
	ctx := context.Background()
	read := func(_ context.Context, msg *websocket.Message) (_ *websocket.Message, err error) {
		count, err = strconv.Atoi(string(msg.Payload))
		return nil, err
	}
	if err := session(ctx, target+"/getCaseCount", opts, read); err != nil {
		return err
	}
	for number := 1; number <= count; number++ {
		address := fmt.Sprintf("%s/runCase?case=%d&agent=%s", target, number, url.QueryEscape(agent))
		if err := session(ctx, address, opts, websocket.EchoHandler); errors.Is(err, errDial) {
			return fmt.Errorf("case %d: %w", number, err)
		}
	}
	return session(ctx, target+"/updateReports?agent="+url.QueryEscape(agent), opts, websocket.EchoHandler)
}

var errDial = errors.New("cannot connect")

func session(ctx context.Context, address string, opts websocket.Options, handler websocket.Handler) error {
	dial, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ws, _, err := websocket.Dial(dial, address, websocket.DialOptions{Options: opts})
	if err != nil {
		return fmt.Errorf("%w: %w", errDial, err)
	}
	return ws.Handle(ctx, handler)
}
