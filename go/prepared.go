package websocket

import (
	"bytes"
	"context"
	"sync"
)

// PreparedMessage is a message that is sent to many connections: it is framed once, and compressed once for each set of
// settings.
type PreparedMessage struct {
	msg   Message
	plain []byte // the frame of a server
	mu    sync.Mutex
	// compressed are functions that return the frame of a server by the settings of the compression; the first call of each
	// compresses, and others wait for it.
	compressed map[compressionKey]func() []byte
}

// compressionKey are the settings on which the compressed bytes depend.
type compressionKey struct{ level, segment int }

// PrepareMessage prepares a message. It copies the payload.
func PrepareMessage(msg *Message) *PreparedMessage {
	frame := NewFrame(msg.opcode(), true, msg.Payload)
	plain := MarshalFrame(frame, Unmasked)
	payload := plain[len(plain)-len(msg.Payload):]
	return &PreparedMessage{msg: Message{Binary: msg.Binary, Payload: payload}, plain: plain}
}

// frame returns the frame with the compressed message; the uncompressed one if compression gains nothing.
func (m *PreparedMessage) frame(c *codec) []byte {
	if c == nil || !c.isWorthwhile(len(m.msg.Payload)) {
		return m.plain
	}
	key := compressionKey{c.level, c.segment}
	m.mu.Lock()
	frame, ok := m.compressed[key]
	if !ok {
		if m.compressed == nil {
			m.compressed = make(map[compressionKey]func() []byte)
		}
		frame = sync.OnceValue(func() []byte { return m.compress(key) })
		m.compressed[key] = frame
	}
	m.mu.Unlock()
	return frame()
}

func (m *PreparedMessage) compress(key compressionKey) []byte {
	c := &codec{level: key.level, segment: key.segment}
	out := c.compress(m.msg.Payload)
	defer c.release(out)
	if out.Len() >= len(m.msg.Payload) {
		return m.plain
	}
	return MarshalFrame(NewFrame(m.msg.opcode(), true, bytes.Clone(out.Bytes()), RSV1), Unmasked)
}

// WritePrepared writes a prepared message: a server's without copying it. Clients, whose frames have keys of their own,
// connections with context takeover and messages over [Options.MaxFrameSize] share nothing.
func (ws *Websocket) WritePrepared(ctx context.Context, msg *PreparedMessage) error {
	shared := ws.mode == ServerMode && (ws.codec == nil || !ws.codec.keeps)
	if !shared || len(msg.msg.Payload) > ws.maxFrameSize {
		return ws.WriteMessage(ctx, &msg.msg)
	}
	frame := msg.frame(ws.codec)
	ws.messageHook(&msg.msg)
	if err := ws.lockWriter(ctx); err != nil {
		return err
	}
	defer ws.writer.lock.unlock()
	if ws.hooks.OnWriteFrame != nil {
		_, n := parseHeader(frame)
		ws.writeHook(frame[0], frame[n:])
	}
	if err := ws.flushPong(ctx); err != nil {
		return ws.writeError(err)
	}
	if err := ws.writer.deadline.start(ctx); err != nil {
		return ws.writeError(err)
	}
	n, err := ws.conn.Write(frame)
	return ws.writeError(ws.wrote(ctx, n, err))
}
