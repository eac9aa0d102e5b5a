package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	coder "github.com/coder/websocket"
	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
	gorilla "github.com/gorilla/websocket"
	"github.com/lxzan/gws"

	wireloom "github.com/wireloom/wireloom/go"
)

// peerVariable makes this program a peer: its value is "flood ADDRESS SIZE", "stop ADDRESS SIZE", which ends after the first
// block of a flood, or "echo ADDRESS SIZE DEPTH".
const peerVariable = "WIRELOOM_BENCH_PEER"

func TestMain(m *testing.M) {
	if peer := os.Getenv(peerVariable); peer != "" {
		if err := runPeer(strings.Fields(peer)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const handshake = "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"

// runPeer sends masked text until the server disconnects; an echoing peer waits for the answers to the messages before the
// last `depth`.
func runPeer(args []string) error {
	size, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	conn, err := net.Dial("tcp", args[1])
	if err != nil {
		return err
	}
	if _, err := io.WriteString(conn, handshake); err != nil {
		return err
	}
	reader := bufio.NewReaderSize(conn, 256<<10)
	if _, err := http.ReadResponse(reader, nil); err != nil {
		return err
	}
	var block bytes.Buffer
	frame := wireloom.NewFrame(wireloom.OpcodeText, true, text(size))
	write := func() error { return wireloom.WriteFrame(&block, wireloom.NewMaskingKey(), frame) }
	if args[0] != "echo" {
		for block.Len() < 256<<10 {
			if err := write(); err != nil {
				return err
			}
		}
		for err == nil {
			if _, err = conn.Write(block.Bytes()); args[0] == "stop" {
				break
			}
		}
		return nil
	}
	depth, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	for range depth {
		if err := write(); err != nil {
			return err
		}
	}
	// The server's header is as long as the client's without the key.
	answer := depth * (headerLen(size) - 4 + size)
	for {
		if _, err := conn.Write(block.Bytes()); err != nil {
			return nil
		}
		if _, err := io.CopyN(io.Discard, reader, int64(answer)); err != nil {
			return nil
		}
	}
}

// serving is a library that serves a connection: it calls message for each, until that returns false, and echoes it if
// echo is set.
type serving func(w http.ResponseWriter, r *http.Request, echo bool, message func(size int) bool)

type gwsHandler struct {
	gws.BuiltinEventHandler
	echo    bool
	message func(size int) bool
}

func (h gwsHandler) OnMessage(socket *gws.Conn, message *gws.Message) {
	defer message.Close()
	if !h.message(message.Data.Len()) {
		_ = socket.NetConn().Close()
		return
	}
	if h.echo {
		_ = socket.WriteMessage(message.Opcode, message.Bytes())
	}
}

type library struct {
	name  string
	serve serving
}

var libraries = []library{
	{"wireloom", func(w http.ResponseWriter, r *http.Request, echo bool, message func(int) bool) {
		socket, err := wireloom.Accept(w, r, wireloom.Options{MaxFrameSize: maxSize, MaxMessageSize: maxSize})
		for ctx := context.Background(); err == nil; {
			var msg *wireloom.Message
			if msg, err = socket.ReadMessage(ctx); err == nil && !message(len(msg.Payload)) {
				return
			}
			if err == nil && echo {
				err = socket.WriteMessage(ctx, msg)
			}
		}
	}},
	{"wireloom-reused", func(w http.ResponseWriter, r *http.Request, echo bool, message func(int) bool) {
		socket, err := wireloom.Accept(w, r, wireloom.Options{MaxFrameSize: maxSize, MaxMessageSize: maxSize})
		var msg wireloom.Message
		for ctx := context.Background(); err == nil; {
			if err = socket.ReadMessageInto(ctx, &msg); err == nil && !message(len(msg.Payload)) {
				return
			}
			if err == nil && echo {
				err = socket.WriteMessage(ctx, &msg)
			}
		}
	}},
	{"gws", func(w http.ResponseWriter, r *http.Request, echo bool, message func(int) bool) {
		upgrader := gws.NewUpgrader(gwsHandler{echo: echo, message: message}, &gws.ServerOption{
			CheckUtf8Enabled: true, ReadMaxPayloadSize: maxSize, WriteMaxPayloadSize: maxSize,
		})
		if socket, err := upgrader.Upgrade(w, r); err == nil {
			socket.ReadLoop()
		}
	}},
	{"gorilla", func(w http.ResponseWriter, r *http.Request, echo bool, message func(int) bool) {
		upgrader := gorilla.Upgrader{}
		socket, err := upgrader.Upgrade(w, r, nil)
		for err == nil {
			var kind int
			var p []byte
			if kind, p, err = socket.ReadMessage(); err == nil && !message(len(p)) {
				return
			}
			if err == nil && echo {
				err = socket.WriteMessage(kind, p)
			}
		}
	}},
	{"coder", func(w http.ResponseWriter, r *http.Request, echo bool, message func(int) bool) {
		socket, err := coder.Accept(w, r, &coder.AcceptOptions{CompressionMode: coder.CompressionDisabled})
		if err == nil {
			socket.SetReadLimit(maxSize)
		}
		for ctx := context.Background(); err == nil; {
			var kind coder.MessageType
			var p []byte
			if kind, p, err = socket.Read(ctx); err == nil && !message(len(p)) {
				return
			}
			if err == nil && echo {
				err = socket.Write(ctx, kind, p)
			}
		}
	}},
	{"gobwas", func(w http.ResponseWriter, r *http.Request, echo bool, message func(int) bool) {
		conn, buffered, _, err := ws.UpgradeHTTP(r, w)
		for err == nil {
			var p []byte
			rw := struct {
				io.Reader
				io.Writer
			}{buffered.Reader, conn}
			if p, _, err = wsutil.ReadClientData(rw); err == nil && !message(len(p)) {
				return
			}
			if err == nil && echo {
				err = ws.WriteFrame(conn, ws.NewTextFrame(p))
			}
		}
	}},
}

// floorRead reads frames of a known length into memory of their own, without WebSocket: the least that a message costs whose
// caller keeps it.
func floorRead(size int) serving {
	return func(w http.ResponseWriter, _ *http.Request, _ bool, message func(int) bool) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		}
		for reader := bufio.NewReaderSize(conn, 16<<10); err == nil; {
			frame := make([]byte, headerLen(size)+size)
			if _, err = io.ReadFull(reader, frame); err == nil && !message(len(frame)-headerLen(size)) {
				return
			}
		}
	}
}

// raceTCP measures the processor time of this process, the server, per message of a peer in another process.
func raceTCP(b *testing.B, size int, echo bool, peer string) {
	contestants := libraries[:len(libraries):len(libraries)]
	if !echo {
		contestants = append(contestants, library{"floor-read", floorRead(size)})
	}
	for _, library := range contestants {
		b.Run(fmt.Sprintf("lib=%s", library.name), func(b *testing.B) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			must(b, err)
			served := make(chan struct{})
			count := -1000 // the messages before the measurement
			var start time.Duration
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(served)
				library.serve(w, r, echo, func(got int) bool {
					if got != size {
						b.Errorf("a message of %d bytes", got)
					}
					if count++; count == 0 {
						start = processTime(b)
						b.ResetTimer()
					}
					return count < b.N
				})
			})}
			go func() { _ = server.Serve(listener) }()
			command := exec.Command(os.Args[0])
			command.Env = append(os.Environ(), peerVariable+"="+fmt.Sprintf(peer, listener.Addr()))
			command.Stderr = os.Stderr
			must(b, command.Start())
			<-served
			b.ReportMetric(float64(processTime(b)-start)/float64(b.N), "cpu-ns/op")
			_ = command.Process.Kill()
			_ = command.Wait()
			_ = server.Close()
			if count < b.N {
				b.Fatalf("the race ended after %d of %d messages", count, b.N)
			}
		})
	}
}

func TestARaceThatBreaksOffFails(t *testing.T) {
	for _, echo := range []bool{false, true} {
		testing.Benchmark(func(b *testing.B) {
			raceTCP(b, 64<<10, echo, "stop %s 65536")
			if !b.Failed() {
				t.Errorf("echo=%t: a figure for messages that did not arrive", echo)
			}
		})
	}
}

// BenchmarkFlood reads what a peer sends as fast as it can, over loopback.
func BenchmarkFlood(b *testing.B) {
	for _, size := range []int{13, 200, 1 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			raceTCP(b, size, false, fmt.Sprintf("flood %%s %d", size))
			raceRust(b, size, 0)
		})
	}
}

// BenchmarkEcho answers a peer that has a number of messages on the way, over loopback.
func BenchmarkEcho(b *testing.B) {
	for _, depth := range []int{1, 64} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			raceTCP(b, 32, true, fmt.Sprintf("echo %%s 32 %d", depth))
			raceRust(b, 32, depth)
		})
	}
}

// BenchmarkIdle measures the memory of idle connections, in bytes each. The library "hijack" reads from the connection that
// net/http hands over, with four bytes.
func BenchmarkIdle(b *testing.B) {
	const connections = 1000
	idle := append(libraries[:len(libraries):len(libraries)], library{"hijack", func(w http.ResponseWriter, _ *http.Request, _ bool, _ func(int) bool) {
		conn, _, err := http.NewResponseController(w).Hijack()
		must(b, err)
		_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		must(b, err)
		_, _ = conn.Read(make([]byte, 4))
	}})
	for _, library := range idle {
		if library.name == "wireloom-reused" {
			continue
		}
		b.Run("lib="+library.name, func(b *testing.B) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			must(b, err)
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				library.serve(w, r, false, func(int) bool { return true })
			})}
			go func() { _ = server.Serve(listener) }()
			for range b.N {
				before := inUse()
				var clients []net.Conn
				for range connections {
					conn, err := net.Dial("tcp", listener.Addr().String())
					must(b, err)
					_, err = io.WriteString(conn, handshake)
					must(b, err)
					response, err := http.ReadResponse(bufio.NewReaderSize(conn, 512), nil)
					must(b, err)
					if response.StatusCode != http.StatusSwitchingProtocols {
						b.Fatal(response.Status)
					}
					clients = append(clients, conn)
				}
				time.Sleep(50 * time.Millisecond) // until the last handler waits
				b.ReportMetric(float64(inUse()-before)/connections, "B/conn")
				for _, conn := range clients {
					_ = conn.Close()
				}
				runtime.KeepAlive(clients)
			}
			_ = server.Close()
		})
	}
}

// inUse is the memory of objects and stacks.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc + stats.StackInuse)
}
