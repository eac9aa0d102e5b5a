package websocket

import "fmt"

// Message is a message of the application, of one or more frames.
type Message struct {
	// Binary is false for text, whose payload is UTF-8.
	Binary  bool
	Payload []byte
}

// String describes the message; a payload over 64 bytes is shown as its length.
func (m Message) String() string {
	return fmt.Sprintf("Message{Binary: %v, Payload: %s}", m.Binary, describe(m.Payload))
}

func (m *Message) opcode() Opcode {
	if m.Binary {
		return OpcodeBinary
	}
	return OpcodeText
}

// FrameMessage splits a message into frames with payloads of at most frameSize bytes, which must be positive unless the
// message is empty. The frames share the payload of the message.
func FrameMessage(msg *Message, frameSize int) []*Frame {
	payload, opcode := msg.Payload, msg.opcode()
	if frameSize <= 0 && len(payload) > 0 {
		panic("websocket: FrameMessage: frameSize must be positive")
	}
	var frames []*Frame
	for len(payload) > frameSize {
		frames = append(frames, NewFrame(opcode, false, payload[:frameSize]))
		payload, opcode = payload[frameSize:], OpcodeContinuation
	}
	return append(frames, NewFrame(opcode, true, payload))
}

// newMessage returns a message with a payload of n bytes. Up to 4 KiB, message and payload are one allocation. The sizes
// fill the size classes of Go's allocator; above 512 bytes these have a header of eight bytes.
func newMessage(n int) *Message {
	switch {
	case n <= 16:
		return (&boxed[[16]byte]{}).message(func(b *[16]byte) []byte { return b[:n:n] })
	case n <= 32:
		return (&boxed[[32]byte]{}).message(func(b *[32]byte) []byte { return b[:n:n] })
	case n <= 64:
		return (&boxed[[64]byte]{}).message(func(b *[64]byte) []byte { return b[:n:n] })
	case n <= 96:
		return (&boxed[[96]byte]{}).message(func(b *[96]byte) []byte { return b[:n:n] })
	case n <= 160:
		return (&boxed[[160]byte]{}).message(func(b *[160]byte) []byte { return b[:n:n] })
	case n <= 224:
		return (&boxed[[224]byte]{}).message(func(b *[224]byte) []byte { return b[:n:n] })
	case n <= 352:
		return (&boxed[[352]byte]{}).message(func(b *[352]byte) []byte { return b[:n:n] })
	case n <= 480:
		return (&boxed[[480]byte]{}).message(func(b *[480]byte) []byte { return b[:n:n] })
	case n <= 728:
		return (&boxed[[728]byte]{}).message(func(b *[728]byte) []byte { return b[:n:n] })
	case n <= 1112:
		return (&boxed[[1112]byte]{}).message(func(b *[1112]byte) []byte { return b[:n:n] })
	case n <= 2008:
		return (&boxed[[2008]byte]{}).message(func(b *[2008]byte) []byte { return b[:n:n] })
	case n <= 4056:
		return (&boxed[[4056]byte]{}).message(func(b *[4056]byte) []byte { return b[:n:n] })
	}
	return &Message{Payload: make([]byte, n)}
}

// boxed is a message and its payload in one allocation.
type boxed[A any] struct {
	Message
	data A
}

func (b *boxed[A]) message(payload func(*A) []byte) *Message {
	b.Payload = payload(&b.data)
	return &b.Message
}
