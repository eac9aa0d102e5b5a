package websocket

import (
	"context"
	"fmt"
	"io"
	"slices"
)

// reader is the receiving half of a connection.
//
//	conn ── buf[r:w] ── frame ── message.data ── Message
//
// Small frames are decoded from a buffer that many connections share: an idle one has none. The rest of a large frame is
// read into the message.
type reader struct {
	lock     lock // held by ReadMessage; guards the rest
	deadline deadline
	source   source
	buf      []byte
	r, w     int
	// frame is the frame whose payload is being read, if inFrame.
	frame   frameHeader
	inFrame bool
	message partial
	control []byte
	// pong is how far the answer of the Ping in control has come.
	pong pongState
	// skip is how much of the payload of a refused frame is left, in bytes.
	skip uint64
}

// pongState is how far the answer of a Ping has come, which the end of a read's context may interrupt.
type pongState uint8

const (
	pongDone   pongState = iota
	pongDue              // waits for the writer
	pongQueued           // is or was in writer.pong
)

// partial is a message of which the first frame has been read, not the last.
type partial struct {
	active     bool
	binary     bool
	compressed bool
	// owner is what newMessage returned, if data is the memory of its payload; else nil.
	owner *Message
	// data is what has been read, as it was on the wire.
	data []byte
	// checked is the length of the data that is known to be UTF-8.
	checked int
	// frameStart is where the payload of the current frame begins in data.
	frameStart int
}

// ReadMessage returns the next message. It answers pings and Close frames on the way.
//
// It returns [io.EOF] after the peer's Close frame, when the connection is closing. An error that wraps io.EOF means that the
// peer disconnected without one. An error that wraps an [Error] is a violation of the protocol; RFC 6455 §7.1.7 wants the
// connection to be closed, which ReadMessage leaves to the caller and [Websocket.Handle] does. When the context ends, its
// error is returned, and the connection can still be used: the next call continues where this one stopped.
func (ws *Websocket) ReadMessage(ctx context.Context) (*Message, error) {
	return ws.receive(ctx, nil)
}

// ReadMessageInto is [Websocket.ReadMessage] into a message that the caller reuses: the payload is replaced, in the same
// memory if that is large enough. On an error the payload is undefined.
func (ws *Websocket) ReadMessageInto(ctx context.Context, msg *Message) error {
	_, err := ws.receive(ctx, msg)
	return err
}

// receive reads a message into dst or, if that is nil, into a new one.
func (ws *Websocket) receive(ctx context.Context, dst *Message) (*Message, error) {
	if err := ws.lockReader(ctx); err != nil {
		return nil, err
	}
	if ws.hooks != &noHooks {
		defer func() { // a hook may panic
			ws.reader.leave(dst)
			ws.reader.lock.unlock()
		}()
		return ws.readMessage(ctx, dst)
	}
	msg, err := ws.readMessage(ctx, dst)
	if err != nil {
		ws.reader.leave(dst)
	}
	ws.reader.lock.unlock()
	return msg, err
}

// leave moves a message that has been read in part out of the memory of dst: the next call continues it, while the caller
// may use that memory.
func (in *reader) leave(dst *Message) {
	if dst != nil && in.message.active {
		in.message.data = slices.Clone(in.message.data)
	}
}

// lockReader gets the right to read messages.
func (ws *Websocket) lockReader(ctx context.Context) error {
	if ws.state.Load() != stateOpen {
		return ErrConnectionClosed
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("websocket: read: %w", err)
	}
	if !ws.reader.lock.tryLock() && !ws.reader.lock.lock(ctx.Done()) {
		return fmt.Errorf("websocket: read: %w", ctx.Err())
	}
	if ws.state.Load() != stateOpen {
		ws.reader.lock.unlock()
		return ErrConnectionClosed
	}
	return nil
}

// readMessage reads a message into dst or, if that is nil, into a new one. The caller holds the lock.
func (ws *Websocket) readMessage(ctx context.Context, dst *Message) (*Message, error) {
	in := &ws.reader
	if in.pong != pongDone {
		if err := ws.writePong(ctx); err != nil {
			return nil, err
		}
	}
	for {
		if !in.inFrame {
			if in.skip > 0 {
				if err := ws.skipPayload(ctx); err != nil {
					return nil, err
				}
			}
			header, n := parseHeader(in.buf[in.r:in.w])
			if n == 0 {
				if err := ws.fill(ctx, "error reading frame header"); err != nil {
					return nil, err
				}
				continue
			}
			in.r += n
			if err := ws.checkHeader(&header); err != nil {
				if ws.codec != nil && header.first&byte(RSV1) != 0 {
					ws.codec.loseWindow()
				}
				return nil, ws.refuse(header.remaining, err)
			}
			if in.w-in.r >= int(header.remaining) && ws.isWhole(&header) {
				msg, err := ws.takeWhole(&header, dst)
				if err != nil {
					return nil, ws.readError(err)
				}
				if ws.state.Load() != stateOpen {
					continue
				}
				return msg, nil
			}
			in.frame, in.inFrame = header, true
			in.startFrame(dst)
		}
		if err := ws.readPayload(ctx); err != nil {
			return nil, err
		}
		in.inFrame = false
		msg, err := ws.endFrame(ctx, dst)
		if err != nil {
			return nil, err
		}
		if msg != nil && ws.state.Load() == stateOpen {
			return msg, nil
		}
	}
}

// checkHeader validates a header (RFC 6455 §5.1, §5.2, §5.4, §5.5).
func (ws *Websocket) checkHeader(h *frameHeader) error {
	opcode := h.opcode()
	if reserved := h.first & rsvBits; reserved != 0 {
		// RFC 7692 §6: RSV1 of the first frame of a message marks it as compressed.
		isFirst := opcode == OpcodeText || opcode == OpcodeBinary
		if reserved != byte(RSV1) || ws.codec == nil || !isFirst {
			return ErrRSVBitsUnsupported
		}
	}
	if h.masked == bool(ws.mode) {
		if h.masked {
			return ErrServerFrameMasked
		}
		return ErrClientFrameUnmasked
	}
	if !isMinimal(int(h.extended), h.remaining) || h.remaining>>63 != 0 {
		return ErrFrameLengthInvalid
	}
	switch opcode {
	case OpcodeText, OpcodeBinary:
		if ws.reader.message.active {
			return ErrContinuationExpected
		}
	case OpcodeContinuation:
		if !ws.reader.message.active {
			return ErrContinuationUnexpected
		}
	case OpcodeClose, OpcodePing, OpcodePong:
		if h.remaining > maxControlLen {
			return ErrControlFrameTooLarge
		}
		if !h.fin() {
			return ErrControlFrameFragmented
		}
		return nil
	default:
		return ErrOpcodeUnknown
	}
	if h.remaining > uint64(ws.maxFrameSize) {
		return ErrFrameTooLarge
	}
	if uint64(len(ws.reader.message.data))+h.remaining > uint64(ws.maxMessageSize) {
		return ErrMessageTooLarge
	}
	return nil
}

// isWhole reports whether the frame is a message that can be taken from the buffer in one step.
func (ws *Websocket) isWhole(h *frameHeader) bool {
	const plain = finBit | rsvBits
	return h.first&plain == finBit && (h.opcode() == OpcodeText || h.opcode() == OpcodeBinary) && ws.hooks.OnReadFrame == nil
}

// takeWhole takes a message of one frame from the buffer. The payload is unmasked, copied and tested for ASCII in one pass.
func (ws *Websocket) takeWhole(h *frameHeader, dst *Message) (*Message, error) {
	in := &ws.reader
	n := int(h.remaining)
	if dst == nil {
		dst = newMessage(n)
	} else if cap(dst.Payload) < n {
		dst.Payload = make([]byte, n)
	} else {
		dst.Payload = dst.Payload[:n]
	}
	dst.Binary = h.opcode() == OpcodeBinary
	isASCII := mask(dst.Payload, in.buf[in.r:in.r+n], h.key)
	in.r += n
	if !isASCII && !dst.Binary && !validText(dst.Payload) {
		return nil, ErrInvalidFramePayload
	}
	if ws.hooks.OnReadMessage != nil {
		ws.hooks.OnReadMessage(ws.clientKey, dst)
	}
	return dst, nil
}

// startFrame begins a frame whose header was valid.
func (in *reader) startFrame(dst *Message) {
	m := &in.message
	switch in.frame.opcode() {
	case OpcodeText, OpcodeBinary:
		*m = partial{active: true, binary: in.frame.opcode() == OpcodeBinary, compressed: in.frame.first&byte(RSV1) != 0}
		if dst != nil && !m.compressed {
			m.data = dst.Payload[:0]
		}
		if !in.frame.fin() || uint64(cap(m.data)) >= in.frame.remaining {
			break
		}
		n := reserveLen(0, in.frame.remaining)
		if dst == nil && !m.compressed {
			m.owner = newMessage(n)
			m.data = m.owner.Payload[:0]
		} else {
			m.data = make([]byte, 0, n)
		}
	case OpcodeContinuation:
		m.frameStart = len(m.data)
	default:
		in.control = in.control[:0]
	}
}

// readPayload reads the rest of the frame's payload.
func (ws *Websocket) readPayload(ctx context.Context) error {
	in := &ws.reader
	for f := &in.frame; f.remaining > 0; {
		if f.opcode().isControl() {
			n := min(in.w-in.r, int(f.remaining))
			if n == 0 {
				if err := ws.fill(ctx, "error reading control frame"); err != nil {
					return err
				}
				continue
			}
			if in.control == nil {
				in.control = make([]byte, 0, maxControlLen)
			}
			start := len(in.control)
			in.control = in.control[:start+n]
			in.unmask(in.control[start:], in.buf[in.r:in.r+n])
			in.r += n
			continue
		}
		m := &in.message
		start, isASCII := len(m.data), false
		if in.r < in.w {
			n := min(uint64(in.w-in.r), f.remaining)
			m.data = slices.Grow(m.data, int(n))[:start+int(n)]
			isASCII = in.unmask(m.data[start:], in.buf[in.r:in.r+int(n)])
			in.r += int(n)
		} else if f.remaining < bufferLen/2 {
			if err := ws.fill(ctx, "error reading payload"); err != nil {
				return err
			}
			continue
		} else {
			if room := cap(m.data) - start; room < bufferLen && uint64(room) < f.remaining {
				m.data = slices.Grow(m.data, reserveLen(start, f.remaining))
			}
			want := int(min(f.remaining, uint64(cap(m.data)-start)))
			n, err := ws.readDirect(ctx, m.data[start:start+want])
			if n > 0 {
				m.data = m.data[:start+n]
				isASCII = in.unmask(m.data[start:], m.data[start:])
			}
			if err != nil {
				return err
			}
		}
		if isASCII && m.checked == start {
			m.checked = len(m.data)
		} else if err := m.checkText(false); err != nil {
			return ws.refuse(f.remaining, err)
		}
	}
	return nil
}

// unmask unmasks the next bytes of the payload, and reports whether they are ASCII.
func (in *reader) unmask(dst, src []byte) (isASCII bool) {
	f := &in.frame
	isASCII = mask(dst, src, f.key)
	f.key = rotateKey(f.key, len(src))
	f.remaining -= uint64(len(src))
	return isASCII
}

// checkText validates what has arrived of a text message, so that invalid text fails at once.
func (m *partial) checkText(end bool) error {
	if m.binary || m.compressed {
		return nil
	}
	n, ok := validPrefix(m.data[m.checked:])
	m.checked += n
	if !ok || end && m.checked < len(m.data) {
		return ErrInvalidFramePayload
	}
	return nil
}

// endFrame handles a frame whose payload is complete. It returns a message if that is complete. The hooks are called when
// the connection is ready for the next frame, since they may panic.
func (ws *Websocket) endFrame(ctx context.Context, dst *Message) (*Message, error) {
	in := &ws.reader
	f := &in.frame
	if opcode := f.opcode(); opcode.isControl() {
		payload := in.control
		if opcode == OpcodeClose {
			if err := checkClose(payload); err != nil {
				return nil, ws.readError(err)
			}
		}
		return nil, ws.endControl(ctx, opcode, payload)
	}
	m := &in.message
	payload := m.data[m.frameStart:]
	if !f.fin() {
		ws.frameHook(f.first, payload)
		return nil, nil
	}
	done := *m
	*m = partial{}
	err := done.checkText(true)
	if err == nil && done.compressed {
		var into []byte
		if dst != nil {
			into = dst.Payload[:0]
		}
		done.data, err = ws.codec.decompress(done.data, into, ws.maxMessageSize)
		if err != nil {
			ws.codec.loseWindow()
		} else if !done.binary && !validText(done.data) {
			err = ErrInvalidFramePayload
		}
	}
	ws.frameHook(f.first, payload)
	if err != nil {
		return nil, ws.readError(err)
	}
	if dst == nil {
		dst = done.owner
	}
	if dst == nil {
		dst = &Message{}
	}
	dst.Binary, dst.Payload = done.binary, done.data
	if dst.Payload == nil {
		dst.Payload = []byte{}
	}
	if ws.hooks.OnReadMessage != nil {
		ws.hooks.OnReadMessage(ws.clientKey, dst)
	}
	return dst, nil
}

// endControl answers a control frame after its hook, also if that panics: the peer waits for the answer.
func (ws *Websocket) endControl(ctx context.Context, opcode Opcode, payload []byte) (err error) {
	defer func() { err = ws.handleControl(ctx, opcode, payload) }()
	ws.frameHook(ws.reader.frame.first, payload)
	return nil
}

func (ws *Websocket) frameHook(first byte, payload []byte) {
	if ws.hooks.OnReadFrame != nil {
		ws.hooks.OnReadFrame(ws.clientKey, &Frame{Payload: payload[:len(payload):len(payload)], header: first})
	}
}

// handleControl answers a ping or a Close frame (RFC 6455 §5.5.1, §5.5.2).
func (ws *Websocket) handleControl(ctx context.Context, opcode Opcode, payload []byte) error {
	switch opcode {
	case OpcodePing:
		ws.reader.pong = pongDue
		return ws.writePong(ctx)
	case OpcodeClose:
		return ws.peerClosed(payload)
	}
	return nil
}

// refuse ends a frame that broke the protocol; the rest of its payload is skipped, so that the next frame can be read.
func (ws *Websocket) refuse(remaining uint64, err error) error {
	ws.reader.inFrame, ws.reader.skip = false, remaining
	return ws.readError(err)
}

// readError reports an error of the protocol. The message that was being read is lost.
func (ws *Websocket) readError(err error) error {
	if ws.reader.message.compressed {
		ws.codec.loseWindow()
	}
	ws.reader.message = partial{}
	if ws.hooks.OnReadError != nil {
		ws.hooks.OnReadError(ws.clientKey, err)
	}
	return fmt.Errorf("websocket: read: %w", err)
}

func (ws *Websocket) skipPayload(ctx context.Context) error {
	in := &ws.reader
	for in.skip > 0 {
		n := min(uint64(in.w-in.r), in.skip)
		in.r += int(n)
		in.skip -= n
		if in.skip > 0 {
			if err := ws.fill(ctx, "error reading payload"); err != nil {
				return err
			}
		}
	}
	return nil
}

// fill reads what has arrived into the buffer.
func (ws *Websocket) fill(ctx context.Context, place string) error {
	in := &ws.reader
	if in.r > 0 {
		// At most a part of a header is left.
		in.w = copy(in.buf, in.buf[in.r:in.w])
		in.r = 0
	}
	if err := in.deadline.start(ctx); err != nil {
		return ws.ioFailed(ctx, place, err)
	}
	n, err := in.source.fill(in)
	in.w += n
	if n == 0 && err != nil {
		return ws.ioFailed(ctx, place, err)
	}
	return nil
}

// readDirect reads what has arrived of a large payload.
func (ws *Websocket) readDirect(ctx context.Context, p []byte) (int, error) {
	if err := ws.reader.deadline.start(ctx); err != nil {
		return 0, ws.ioFailed(ctx, "error reading payload", err)
	}
	n, err := ws.conn.Read(p)
	if n == 0 && err != nil {
		return 0, ws.ioFailed(ctx, "error reading payload", err)
	}
	return n, nil
}

// ioFailed reports an error of the connection. io.EOF within a frame or a message is unexpected.
func (ws *Websocket) ioFailed(ctx context.Context, place string, err error) error {
	in := &ws.reader
	if err == io.EOF && (in.inFrame || in.skip > 0 || in.message.active || in.w > in.r) {
		err = io.ErrUnexpectedEOF
	}
	if ws.state.Load() >= stateLingering {
		return ErrConnectionClosed
	}
	if ended := ended(ctx, err); ended != nil {
		return fmt.Errorf("websocket: read: %w", ended)
	}
	failed := ioError(place, err)
	if ws.hooks.OnReadError != nil {
		ws.hooks.OnReadError(ws.clientKey, failed)
	}
	return fmt.Errorf("websocket: read: %w", failed)
}
