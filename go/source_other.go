//go:build !unix

package websocket

import "net"

func newSource(conn net.Conn) source { return connSource{conn} }
