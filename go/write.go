package websocket

import (
	"context"
	"fmt"
	"net"
	"sync"
)

// inlineLen is the size of the memory of each connection for frames that are small, in bytes with the header.
const inlineLen = 256

// writer is the sending half of a connection.
type writer struct {
	lock     lock // held while a message is written; guards the rest
	deadline deadline
	// cut is true within a message of several frames. If it still is when the lock is free, only control frames may follow.
	cut bool
	// torn is true if a frame ended before its last byte: nothing may follow.
	torn bool
	// closeSent is true after a Close frame (RFC 6455 §5.5.1: no frame follows it).
	closeSent bool
	// pong is the rest of a Pong, which precedes the next frame; in inline.
	pong   []byte
	inline [inlineLen]byte
}

// writeParts is a header and a payload for one write.
type writeParts struct {
	parts   [2][]byte
	buffers net.Buffers
}

var partsPool = sync.Pool{New: func() any { return new(writeParts) }}

// WriteMessage writes a message, in frames of at most [Options.MaxFrameSize].
//
// When the context ends or a timeout expires before the message is complete, the rest cannot be sent any more, and later
// calls fail. Close still sends a Close frame, unless a frame was cut.
func (ws *Websocket) WriteMessage(ctx context.Context, msg *Message) error {
	ws.messageHook(msg)
	if err := ws.lockWriter(ctx); err != nil {
		return err
	}
	if ws.hooks != &noHooks {
		defer ws.writer.lock.unlock() // a hook may panic
		return ws.writeMessage(ctx, msg)
	}
	err := ws.writeMessage(ctx, msg)
	ws.writer.lock.unlock()
	return err
}

func (ws *Websocket) messageHook(msg *Message) {
	if ws.hooks.OnWriteMessage != nil {
		ws.hooks.OnWriteMessage(ws.clientKey, msg)
	}
}

// lockWriter gets the right to write messages.
func (ws *Websocket) lockWriter(ctx context.Context) error {
	if ws.state.Load() != stateOpen {
		return ErrConnectionClosed
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("websocket: write: %w", err)
	}
	if !ws.writer.lock.tryLock() && !ws.writer.lock.lock(ctx.Done()) {
		return fmt.Errorf("websocket: write: %w", ctx.Err())
	}
	err := error(nil)
	if ws.writer.cut || ws.writer.torn {
		err = errCutShort
	} else if ws.state.Load() != stateOpen {
		err = ErrConnectionClosed
	}
	if err != nil {
		ws.writer.lock.unlock()
	}
	return err
}

func (ws *Websocket) writeMessage(ctx context.Context, msg *Message) error {
	first, payload := byte(msg.opcode()), msg.Payload
	if ws.codec != nil && ws.codec.isWorthwhile(len(payload)) {
		return ws.writeCompressed(ctx, first, payload)
	}
	return ws.writeFrames(ctx, first, payload)
}

func (ws *Websocket) writeCompressed(ctx context.Context, first byte, payload []byte) error {
	compressed := ws.codec.compress(payload)
	wrote := false
	defer func() {
		if !wrote { // a hook may panic
			ws.codec.forget()
		}
		ws.codec.release(compressed)
	}()
	// With context takeover the peer must see all that was compressed.
	if ws.codec.keeps || compressed.Len() < len(payload) {
		first, payload = first|byte(RSV1), compressed.Bytes()
	}
	err := ws.writeFrames(ctx, first, payload)
	wrote = err == nil
	return err
}

// writeFrames writes a message in one frame or, if that would be too large, in fragments.
func (ws *Websocket) writeFrames(ctx context.Context, first byte, payload []byte) error {
	if len(payload) > ws.maxFrameSize {
		return ws.writeFragments(ctx, first, payload)
	}
	if err := ws.writeFrame(ctx, finBit|first, payload); err != nil {
		return ws.writeError(err)
	}
	return nil
}

// writeFragments writes a message in frames of the largest size.
func (ws *Websocket) writeFragments(ctx context.Context, first byte, payload []byte) error {
	for {
		fragment := payload[:min(len(payload), ws.maxFrameSize)]
		payload = payload[len(fragment):]
		if len(payload) == 0 {
			first |= finBit
		}
		err := ctx.Err()
		if err == nil {
			err = ws.writeFrame(ctx, first, fragment)
		}
		if err != nil {
			return ws.writeError(err)
		}
		ws.writer.cut = first&finBit == 0 // until the last frame: a hook of the next may panic
		if !ws.writer.cut {
			return nil
		}
		first = byte(OpcodeContinuation)
	}
}

func (ws *Websocket) writeError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("websocket: write: %w", err)
}

// writePing writes a ping.
func (ws *Websocket) writePing(ctx context.Context, payload []byte) error {
	if !ws.writer.lock.lock(ctx.Done()) {
		return fmt.Errorf("websocket: write: %w", ctx.Err())
	}
	defer ws.writer.lock.unlock()
	if ws.writer.closeSent {
		return nil
	}
	if ws.writer.torn {
		return errCutShort
	}
	// RFC 6455 §5.4: control frames may be sent within a fragmented message, also one that was cut short.
	return ws.writeError(ws.writeFrame(ctx, finBit|byte(OpcodePing), payload))
}

// writePong writes the answer of the Ping in reader.control. If the context ends first, the next frame or read continues. The
// caller holds the lock of the reader.
func (ws *Websocket) writePong(ctx context.Context) error {
	in, out := &ws.reader, &ws.writer
	if ws.state.Load() != stateOpen {
		in.pong = pongDone
		return nil
	}
	if !out.lock.lock(ctx.Done()) {
		return ws.writeError(ctx.Err())
	}
	defer out.lock.unlock()
	state := in.pong
	in.pong = pongDone // a hook may panic
	if out.closeSent {
		return nil
	}
	if out.torn {
		return errCutShort
	}
	var err error
	if state == pongDue {
		if err = ws.flushPong(ctx); err == nil {
			ws.queuePong(in.control)
			state = pongQueued
		}
	}
	if err == nil {
		err = ws.flushPong(ctx)
	}
	if err != nil && ctx.Err() != nil {
		in.pong = state
	}
	return ws.writeError(err)
}

func (ws *Websocket) queuePong(payload []byte) {
	const first = finBit | byte(OpcodePong)
	ws.writeHook(first, payload)
	var key uint32
	if ws.mode == ClientMode {
		key = newKey()
	}
	ws.writer.pong = appendFrame(ws.writer.inline[:0], first, payload, key)
}

// flushPong writes the rest of a Pong, before another frame.
func (ws *Websocket) flushPong(ctx context.Context) error {
	if len(ws.writer.pong) == 0 {
		return nil
	}
	return ws.flushPongSlow(ctx)
}

func (ws *Websocket) flushPongSlow(ctx context.Context) error {
	out := &ws.writer
	if err := out.deadline.start(ctx); err != nil {
		return err
	}
	n, err := ws.conn.Write(out.pong)
	out.pong = out.pong[n:]
	return ws.wrote(ctx, 0, err) // the next write can continue
}

// Ping sends a ping with at most 125 bytes. The peer's pong, which any ReadMessage receives, is seen by
// [Hooks.OnReadFrame], and restarts [Options.ReadTimeout].
func (ws *Websocket) Ping(ctx context.Context, payload []byte) error {
	if len(payload) > maxControlLen {
		return ErrControlFrameTooLarge
	}
	if ws.state.Load() != stateOpen {
		return ErrConnectionClosed
	}
	return ws.writePing(ctx, payload)
}

// writeClose writes a Close frame, once. The caller holds the lock of the writer.
func (ws *Websocket) writeClose(frame *Frame) error {
	if ws.writer.closeSent {
		return nil
	}
	if ws.writer.torn {
		return errCutShort
	}
	ws.writer.closeSent = true
	return ws.writeFrame(context.Background(), frame.header, frame.Payload)
}

// writeFrame writes a frame, masked by a client.
func (ws *Websocket) writeFrame(ctx context.Context, first byte, payload []byte) error {
	ws.writeHook(first, payload)
	out := &ws.writer
	if err := ws.flushPong(ctx); err != nil {
		return err
	}
	if err := out.deadline.start(ctx); err != nil {
		return err
	}
	var key uint32
	if ws.mode == ClientMode {
		key = newKey()
	}
	n, err := 0, error(nil)
	switch {
	case len(payload) <= inlineLen-maxHeaderLen:
		n, err = ws.conn.Write(appendFrame(out.inline[:0], first, payload, key))
	case len(payload) <= bufferLen-maxHeaderLen:
		buffer := buffers.Get().(*[bufferLen]byte)
		n, err = ws.conn.Write(appendFrame(buffer[:0], first, payload, key))
		buffers.Put(buffer)
	case key != 0:
		n, err = ws.writeMasked(first, payload, key)
	default:
		n, err = ws.writeVector(appendHeader(out.inline[:0], first, len(payload), 0), payload)
	}
	out.deadline.end()
	if err != nil {
		return ws.writeFailed(ctx, n, err)
	}
	return nil
}

func (ws *Websocket) writeHook(first byte, payload []byte) {
	if ws.hooks.OnWriteFrame != nil {
		ws.hooks.OnWriteFrame(ws.clientKey, &Frame{Payload: payload, header: first})
	}
}

// wrote handles the result of a write.
func (ws *Websocket) wrote(ctx context.Context, n int, err error) error {
	ws.writer.deadline.end()
	if err == nil {
		return nil
	}
	return ws.writeFailed(ctx, n, err)
}

func (ws *Websocket) writeFailed(ctx context.Context, n int, err error) error {
	ws.writer.torn = ws.writer.torn || n > 0
	if ended := ended(ctx, err); ended != nil {
		return ended
	}
	failed := ioError("error writing frame", err)
	if ws.hooks.OnWriteError != nil {
		ws.hooks.OnWriteError(ws.clientKey, failed)
	}
	return failed
}

// writeVector writes a header and a large payload, without copying the payload: in one system call where the connection
// supports it.
func (ws *Websocket) writeVector(header, payload []byte) (int, error) {
	v := partsPool.Get().(*writeParts)
	v.parts = [2][]byte{header, payload}
	v.buffers = v.parts[:]
	n, err := v.buffers.WriteTo(ws.conn)
	v.parts = [2][]byte{}
	partsPool.Put(v)
	return int(n), err
}

// writeMasked writes a large frame in chunks.
func (ws *Websocket) writeMasked(first byte, payload []byte, key uint32) (written int, err error) {
	chunk := chunks.Get().(*[chunkLen]byte)
	defer chunks.Put(chunk)
	b := appendHeader(chunk[:0], first, len(payload), key)
	for {
		n := min(len(payload), chunkLen-len(b))
		start := len(b)
		b = b[:start+n]
		mask(b[start:], payload[:n], key)
		payload, key = payload[n:], rotateKey(key, n)
		n, err = ws.conn.Write(b)
		written += n
		if err != nil || len(payload) == 0 {
			return written, err
		}
		b = chunk[:0]
	}
}
