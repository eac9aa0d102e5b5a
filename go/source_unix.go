//go:build unix

package websocket

import (
	"io"
	"net"
	"os"
	"syscall"
)

// newSource returns the source of a connection. A socket of the standard library is read when bytes have arrived, so that
// an idle connection needs no buffer. Types that embed one may have a Read of their own.
func newSource(conn net.Conn) source {
	var raw syscall.RawConn
	var err error
	switch conn := conn.(type) {
	case *net.TCPConn:
		raw, err = conn.SyscallConn()
	case *net.UnixConn:
		raw, err = conn.SyscallConn()
	}
	if raw == nil || err != nil {
		return connSource{conn}
	}
	source := &socketSource{raw: raw}
	source.try = source.read
	return source
}

// socketSource reads from a socket with the system call.
type socketSource struct {
	raw syscall.RawConn
	// try is the method read; a method value for each call would be an allocation.
	try func(fd uintptr) bool
	in  *reader
	n   int
	err error
}

func (s *socketSource) fill(in *reader) (int, error) {
	s.in, s.n, s.err = in, 0, nil
	err := s.raw.Read(s.try)
	s.in = nil
	if err == nil {
		err = s.err
	}
	return s.n, err
}

// read reads without waiting. It reports false if nothing has arrived; then it is called again when that changes.
func (s *socketSource) read(fd uintptr) bool {
	in := s.in
	in.acquire()
	for {
		n, err := syscall.Read(int(fd), in.buf[in.w:])
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			in.release()
			return false
		case err != nil:
			s.err = os.NewSyscallError("read", err)
		case n == 0:
			s.err = io.EOF
		default:
			s.n = n
		}
		return true
	}
}
