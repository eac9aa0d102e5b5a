// An echo by gws, the way its own documentation sets up a server. It ends with its standard input.
package main

import (
	"fmt"
	"io"
	"net"
	"os"

	"github.com/lxzan/gws"
)

type echo struct{ gws.BuiltinEventHandler }

func (echo) OnPing(socket *gws.Conn, payload []byte) { _ = socket.WritePong(payload) }

func (echo) OnMessage(socket *gws.Conn, message *gws.Message) {
	defer message.Close()
	_ = socket.WriteMessage(message.Opcode, message.Bytes())
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("listening on", listener.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	server := gws.NewServer(&echo{}, &gws.ServerOption{
		CheckUtf8Enabled:    true,
		ReadMaxPayloadSize:  64 << 20,
		WriteMaxPayloadSize: 64 << 20,
	})
	// A client that was cut is no event here.
	server.OnError = func(net.Conn, error) {}
	fmt.Fprintln(os.Stderr, server.RunListener(listener))
}
