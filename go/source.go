package websocket

import "net"

// source reads from a connection into the buffer of a reader.
type source interface {
	// fill reads at least a byte behind in.w, and returns how many.
	fill(in *reader) (int, error)
}

// connSource reads with Read, which needs the buffer before it waits.
type connSource struct{ conn net.Conn }

func (s connSource) fill(in *reader) (int, error) {
	in.acquireSmall()
	return s.conn.Read(in.buf[in.w:])
}

// acquire gets a buffer, if there is none.
func (in *reader) acquire() {
	if in.buf == nil {
		in.buf = buffers.Get().(*[bufferLen]byte)[:]
	}
}

func (in *reader) acquireSmall() {
	if in.buf == nil {
		in.buf = smalls.Get().(*[smallLen]byte)[:]
	}
}

// release returns an empty buffer.
func (in *reader) release() {
	if in.buf == nil || in.r < in.w {
		return
	}
	switch len(in.buf) {
	case bufferLen:
		buffers.Put((*[bufferLen]byte)(in.buf))
	case smallLen:
		smalls.Put((*[smallLen]byte)(in.buf))
	}
	in.buf, in.r, in.w = nil, 0, 0
}

// take puts what arrived with the handshake into the buffer.
func (in *reader) take(early []byte) {
	if len(early) > 0 {
		in.buf = make([]byte, max(len(early), smallLen))
		in.w = copy(in.buf, early)
	}
}
