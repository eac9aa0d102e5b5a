package websocket

import (
	"context"
	"net"
	"sync"
)

// referLen is the size of a payload from which a batch of a server refers to it instead of copying it, in bytes.
const referLen = 4 << 10

// batch gathers frames for one write: small ones are copied into buf, large ones are referred to.
type batch struct {
	buf     [chunkLen]byte
	used    int
	sealed  int // buf[:sealed] is part of the vector
	vector  net.Buffers
	writing net.Buffers
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// WriteMessages writes messages like WriteMessage, in as few writes to the connection as their size allows. The payloads
// must not change before it returns.
func (ws *Websocket) WriteMessages(ctx context.Context, msgs ...*Message) error {
	for _, msg := range msgs {
		ws.messageHook(msg)
	}
	if err := ws.lockWriter(ctx); err != nil {
		return err
	}
	defer ws.writer.lock.unlock()
	b := batches.Get().(*batch)
	defer func() {
		b.reset() // a hook that panics leaves frames
		batches.Put(b)
	}()
	for _, msg := range msgs {
		first, payload := byte(msg.opcode()), msg.Payload
		isCompressed := ws.codec != nil && ws.codec.isWorthwhile(len(payload))
		if isCompressed || len(payload) > ws.maxFrameSize || ws.mode == ClientMode && len(payload) > chunkLen-maxHeaderLen {
			if err := ws.flush(ctx, b); err != nil {
				return err
			}
			if err := ws.writeMessage(ctx, msg); err != nil {
				return err
			}
			continue
		}
		refers := ws.mode == ServerMode && len(payload) >= referLen
		if room := len(b.buf) - b.used; room < maxHeaderLen || !refers && room < maxHeaderLen+len(payload) {
			if err := ws.flush(ctx, b); err != nil {
				return err
			}
		}
		ws.writeHook(finBit|first, payload)
		var key uint32
		if ws.mode == ClientMode {
			key = newKey()
		}
		if refers {
			b.used = len(appendHeader(b.buf[:b.used], finBit|first, len(payload), 0))
			b.seal()
			b.vector = append(b.vector, payload)
		} else {
			b.used = len(appendFrame(b.buf[:b.used], finBit|first, payload, key))
		}
	}
	return ws.flush(ctx, b)
}

func (b *batch) reset() {
	clear(b.vector)
	b.used, b.sealed, b.vector, b.writing = 0, 0, b.vector[:0], nil
}

// seal makes the copied frames a part of the vector.
func (b *batch) seal() {
	if b.used > b.sealed {
		b.vector = append(b.vector, b.buf[b.sealed:b.used])
		b.sealed = b.used
	}
}

// flush writes the gathered frames.
func (ws *Websocket) flush(ctx context.Context, b *batch) error {
	b.seal()
	if len(b.vector) == 0 {
		return nil
	}
	err := ws.flushPong(ctx)
	if err == nil {
		err = ws.writer.deadline.start(ctx)
	}
	if err == nil {
		var n int64
		b.writing = b.vector
		n, err = b.writing.WriteTo(ws.conn)
		err = ws.wrote(ctx, int(n), err)
	}
	b.reset()
	return ws.writeError(err)
}
