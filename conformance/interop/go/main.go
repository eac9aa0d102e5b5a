// Go's gorilla/websocket and coder/websocket, as clients against `wireloom serve` and as servers for `wireloom connect`;
// and net/http over HTTP/2.
//
// usage: interop LIBRARY client BASE | interop LIBRARY server [CERTIFICATE]
// With a file to leave its certificate in, a server speaks TLS.
package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
)

// A library under test.
type library struct {
	client func(base string) error
	// Upgrades, and echoes until the connection ends; "close N" closes with N.
	handler http.HandlerFunc
}

var libraries = map[string]library{
	"gorilla": {gorillaClient, gorillaEcho},
	"coder":   {coderClient, coderEcho},
	"net":     {netClient, netEcho},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: interop LIBRARY client BASE | interop LIBRARY server [CERTIFICATE]")
	}
	library, known := libraries[args[0]]
	if !known {
		return fmt.Errorf("unknown library %s", args[0])
	}
	if args[1] == "client" {
		return library.client(args[2])
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/forbidden", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusForbidden)
	})
	mux.HandleFunc("/", library.handler)
	server := http.Server{Handler: mux, Protocols: new(http.Protocols)}
	if len(args) > 2 {
		certificate, err := certificate(args[2])
		if err != nil {
			return err
		}
		server.Protocols.SetHTTP1(true)
		server.Protocols.SetHTTP2(true)
		server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate}}
		fmt.Printf("on %s\n", listener.Addr())
		return server.ServeTLS(listener, "", "")
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	fmt.Printf("on %s\n", listener.Addr())
	return server.Serve(listener)
}

// messages are those that every client sends to the echo.
func messages() [][]byte {
	many := make([]byte, 70_000)
	for at := range many {
		many[at] = byte(at)
	}
	return [][]byte{{}, []byte("a"), many, make([]byte, 5_000_000)}
}
