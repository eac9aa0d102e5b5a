// A server by centrifuge, the library inside Centrifugo, on one node with its memory engine. Anyone may subscribe and publish, as in the
// hub beside it. It ends with its standard input.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/centrifugal/centrifuge"
)

const (
	historySize = 100
	historyTTL  = 10 * time.Minute
)

// The options of a subscription: those of the namespaces `kept` and `listed`.
func options(channel string) centrifuge.SubscribeOptions {
	isKept := strings.HasPrefix(channel, "kept:")
	return centrifuge.SubscribeOptions{
		EnableRecovery:    isKept,
		EnablePositioning: isKept,
		EmitPresence:      strings.HasPrefix(channel, "listed:"),
	}
}

func publish(node *centrifuge.Node, event centrifuge.PublishEvent) (centrifuge.PublishReply, error) {
	var history []centrifuge.PublishOption
	if strings.HasPrefix(event.Channel, "kept:") {
		history = append(history, centrifuge.WithHistory(historySize, historyTTL))
	}
	result, err := node.Publish(event.Channel, event.Data, history...)
	return centrifuge.PublishReply{Result: &result}, err
}

func serve() error {
	node, err := centrifuge.New(centrifuge.Config{
		ClientQueueMaxSize: 16 << 20,
		// All subscribers are anonymous, as those of the hub.
		UserConnectionLimit: 0,
	})
	if err != nil {
		return err
	}
	node.OnConnecting(func(context.Context, centrifuge.ConnectEvent) (centrifuge.ConnectReply, error) {
		// Longer than any run.
		ping := &centrifuge.PingPongConfig{PingInterval: 2 * time.Hour, PongTimeout: time.Hour}
		return centrifuge.ConnectReply{Credentials: &centrifuge.Credentials{}, PingPongConfig: ping}, nil
	})
	node.OnConnect(func(client *centrifuge.Client) {
		client.OnSubscribe(func(event centrifuge.SubscribeEvent, reply centrifuge.SubscribeCallback) {
			reply(centrifuge.SubscribeReply{Options: options(event.Channel)}, nil)
		})
		client.OnPublish(func(event centrifuge.PublishEvent, reply centrifuge.PublishCallback) {
			reply(publish(node, event))
		})
	})
	if err := node.Run(); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())
	websocket := centrifuge.NewWebsocketHandler(node, centrifuge.WebsocketConfig{
		CheckOrigin: func(*http.Request) bool { return true },
		// "This can help to reduce memory usage" (its documentation).
		UseWriteBufferPool: true,
	})
	http.Handle("/connection/websocket", websocket)
	return http.Serve(listener, nil)
}

func main() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Fprintln(os.Stderr, serve())
	os.Exit(1)
}
