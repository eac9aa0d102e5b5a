package bench

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	wireloom "github.com/wireloom/wireloom/go"
)

// rustServer is the path of the command `wireloom`, whose server joins the races over TCP; "" leaves it out.
var rustServer = os.Getenv("WIRELOOM_SERVER")

// raceRust measures the processor time of Wireloom's server in Rust, with one thread, per message: of an echo at a depth, or of a
// flood that it discards if depth is 0.
func raceRust(b *testing.B, size, depth int) {
	if rustServer == "" {
		return
	}
	b.Run("lib=wireloom-rust", func(b *testing.B) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must(b, err)
		address := listener.Addr().String()
		must(b, listener.Close())
		server := exec.Command(rustServer, "serve", "--listen", address, "--workers", "1", "--log-level", "error")
		server.Stderr = os.Stderr
		must(b, server.Start())
		defer func() {
			_ = server.Process.Kill()
			_ = server.Wait()
		}()
		path := "/echo"
		if depth == 0 {
			path = "/sink"
		}
		conn := dialRust(b, address)
		defer func() { _ = conn.Close() }()
		_, err = io.WriteString(conn, strings.Replace(handshake, "GET /", "GET "+path, 1))
		must(b, err)
		reader := bufio.NewReaderSize(conn, 256<<10)
		response, err := http.ReadResponse(reader, nil)
		must(b, err)
		if response.StatusCode != http.StatusSwitchingProtocols {
			b.Fatal(response.Status)
		}
		var block bytes.Buffer
		count := 0
		for frame := wireloom.NewFrame(wireloom.OpcodeText, true, text(size)); count < depth || depth == 0 && block.Len() < 256<<10; count++ {
			must(b, wireloom.WriteFrame(&block, wireloom.NewMaskingKey(), frame))
		}
		// run sends blocks of at least this number of messages, and waits until the server has handled them.
		run := func(messages int) (sent int) {
			for ; sent < messages; sent += count {
				_, err := conn.Write(block.Bytes())
				must(b, err)
				if depth > 0 {
					_, err := io.CopyN(io.Discard, reader, int64(count*(headerLen(size)-4+size)))
					must(b, err)
				}
			}
			if depth == 0 {
				must(b, wireloom.WriteFrame(conn, wireloom.NewMaskingKey(), wireloom.NewFrame(wireloom.OpcodePing, true, nil)))
				for opcode := wireloom.OpcodePing; opcode != wireloom.OpcodePong; {
					frame, err := wireloom.ReadFrame(reader, wireloom.ClientMode, maxSize)
					must(b, err)
					opcode = frame.Opcode()
				}
			}
			return sent
		}
		run(1000)
		start := processorTimeOf(b, server.Process.Pid)
		b.ResetTimer()
		sent := run(b.N)
		b.ReportMetric(float64(processorTimeOf(b, server.Process.Pid)-start)/float64(sent), "cpu-ns/op")
	})
}

// dialRust connects as soon as the server listens.
func dialRust(b *testing.B, address string) net.Conn {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			return conn
		}
		if time.Now().After(deadline) {
			b.Fatal(err)
		}
	}
}

// processorTimeOf is the processor time of another process, by its clock (clock_getcpuclockid).
func processorTimeOf(b *testing.B, pid int) time.Duration {
	const schedule = 2
	var now syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(int32(^pid<<3|schedule)), uintptr(unsafe.Pointer(&now)), 0)
	if errno != 0 {
		b.Fatal(errno)
	}
	return time.Duration(now.Nano())
}
