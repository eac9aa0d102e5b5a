// A room by gorilla/websocket, as its chat example has it, with prepared messages. It ends with its standard input.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"

	"github.com/gorilla/websocket"
)

var (
	upgrader = websocket.Upgrader{
		CheckOrigin:       func(*http.Request) bool { return true },
		EnableCompression: os.Getenv("DEFLATE") != "",
	}
	mutex    sync.Mutex
	members  = map[chan *websocket.PreparedMessage]struct{}{}
)

func join(response http.ResponseWriter, request *http.Request) {
	socket, err := upgrader.Upgrade(response, request, nil)
	if err != nil {
		return
	}
	defer socket.Close()
	queue := make(chan *websocket.PreparedMessage, 1024)
	mutex.Lock()
	members[queue] = struct{}{}
	mutex.Unlock()
	go func() {
		for message := range queue {
			if socket.WritePreparedMessage(message) != nil {
				socket.Close()
			}
		}
	}()
	for {
		kind, data, err := socket.ReadMessage()
		if err != nil {
			break
		}
		message, err := websocket.NewPreparedMessage(kind, data)
		if err != nil {
			break
		}
		mutex.Lock()
		for member := range members {
			member <- message
		}
		mutex.Unlock()
	}
	mutex.Lock()
	delete(members, queue)
	mutex.Unlock()
	close(queue)
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
	// The file with the certificate and its key.
	if pem := os.Getenv("TLS"); pem != "" {
		fmt.Fprintln(os.Stderr, http.ServeTLS(listener, http.HandlerFunc(join), pem, pem))
		return
	}
	fmt.Fprintln(os.Stderr, http.Serve(listener, http.HandlerFunc(join)))
}
