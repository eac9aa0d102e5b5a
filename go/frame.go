package websocket

import (
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"sync"
	"unicode/utf8"
)

// Opcode is the type of a frame (RFC 6455 §5.2).
type Opcode uint8

// The opcodes of RFC 6455 §11.8. The others are reserved.
const (
	OpcodeContinuation Opcode = 0x0
	OpcodeText         Opcode = 0x1
	OpcodeBinary       Opcode = 0x2
	OpcodeClose        Opcode = 0x8
	OpcodePing         Opcode = 0x9
	OpcodePong         Opcode = 0xA
)

// String returns the name of the opcode.
func (o Opcode) String() string {
	switch o {
	case OpcodeContinuation:
		return "Cont"
	case OpcodeText:
		return "Text"
	case OpcodeBinary:
		return "Binary"
	case OpcodeClose:
		return "Close"
	case OpcodePing:
		return "Ping"
	case OpcodePong:
		return "Pong"
	}
	return "Opcode(" + strconv.Itoa(int(o)) + ")"
}

// isControl reports whether the opcode is that of a control frame (RFC 6455 §5.5).
func (o Opcode) isControl() bool { return o&0x8 != 0 }

// RSVBit is a reserved bit in the first byte of a frame.
type RSVBit byte

// The reserved bits (RFC 6455 §5.2). RSV1 marks a compressed message (RFC 7692 §6).
const (
	RSV1 RSVBit = 0x40
	RSV2 RSVBit = 0x20
	RSV3 RSVBit = 0x10
)

const (
	finBit       = 0x80
	rsvBits      = 0x70
	opcodeBits   = 0x0F
	maskBit      = 0x80
	lenBits      = 0x7F
	len16        = 126
	len64        = 127
	maxHeaderLen = 14
	// maxControlLen is the longest payload of a control frame (RFC 6455 §5.5).
	maxControlLen = 125
	// maxReasonLen is the longest reason of a Close frame.
	maxReasonLen = maxControlLen - 2
	// trustedLen is how much memory is reserved for an announced length before any of it has arrived, and reserveMax how much
	// for that alone that a part has, in bytes.
	trustedLen = 64 << 10
	reserveMax = 1 << 20
)

// Frame is one frame (RFC 6455 §5.2). Its payload is never masked.
type Frame struct {
	Payload []byte
	// header is the first byte on the wire: FIN, the reserved bits, the opcode.
	header byte
}

// NewFrame returns a frame. It does not copy the payload.
func NewFrame(opcode Opcode, fin bool, payload []byte, rsv ...RSVBit) *Frame {
	header := byte(opcode) & opcodeBits
	if fin {
		header |= finBit
	}
	for _, bit := range rsv {
		header |= byte(bit) & rsvBits
	}
	return &Frame{Payload: payload, header: header}
}

// NewCloseFrame returns a Close frame. With code 0 it has no payload. A reason that does not fit into a control frame is
// cut at a code point.
func NewCloseFrame(code StatusCode, reason string) *Frame {
	if code == 0 {
		return NewFrame(OpcodeClose, true, nil)
	}
	if len(reason) > maxReasonLen {
		cut := maxReasonLen
		for cut > maxReasonLen-utf8.UTFMax && !utf8.RuneStart(reason[cut]) {
			cut--
		}
		reason = reason[:cut]
	}
	payload := make([]byte, 0, 2+len(reason))
	payload = binary.BigEndian.AppendUint16(payload, uint16(code))
	return NewFrame(OpcodeClose, true, append(payload, reason...))
}

// Fin reports whether this is the last frame of its message.
func (f *Frame) Fin() bool { return f.header&finBit != 0 }

// Opcode returns the opcode.
func (f *Frame) Opcode() Opcode { return Opcode(f.header & opcodeBits) }

// RSV1 reports whether the first reserved bit is set.
func (f *Frame) RSV1() bool { return f.header&byte(RSV1) != 0 }

// RSV2 reports whether the second reserved bit is set.
func (f *Frame) RSV2() bool { return f.header&byte(RSV2) != 0 }

// RSV3 reports whether the third reserved bit is set.
func (f *Frame) RSV3() bool { return f.header&byte(RSV3) != 0 }

// String describes the frame; a payload over 64 bytes is shown as its length.
func (f Frame) String() string {
	return fmt.Sprintf("Frame{Fin: %v, Opcode: %v, Payload: %s}", f.Fin(), f.Opcode(), describe(f.Payload))
}

func describe(payload []byte) string {
	if len(payload) > 64 {
		return fmt.Sprintf("[%d bytes]", len(payload))
	}
	return strconv.Quote(string(payload))
}

// appendHeader appends the header of a frame with this first byte. A key of 0 means that the frame is not masked.
func appendHeader(b []byte, first byte, payloadLen int, key uint32) []byte {
	var masked byte
	if key != 0 {
		masked = maskBit
	}
	switch {
	case payloadLen < len16:
		b = append(b, first, masked|byte(payloadLen))
	case payloadLen <= 0xFFFF:
		b = append(b, first, masked|len16, byte(payloadLen>>8), byte(payloadLen))
	default:
		b = append(b, first, masked|len64)
		b = binary.BigEndian.AppendUint64(b, uint64(payloadLen))
	}
	if key != 0 {
		b = binary.LittleEndian.AppendUint32(b, key)
	}
	return b
}

// appendFrame appends a whole frame. b has the capacity.
func appendFrame(b []byte, first byte, payload []byte, key uint32) []byte {
	b = appendHeader(b, first, len(payload), key)
	if key == 0 {
		return append(b, payload...)
	}
	start := len(b)
	b = b[:start+len(payload)]
	mask(b[start:], payload, key)
	return b
}

// MarshalFrame returns the bytes of a frame. See [WriteFrame].
func MarshalFrame(frame *Frame, key MaskingKey) []byte {
	return appendFrame(make([]byte, 0, maxHeaderLen+len(frame.Payload)), frame.header, frame.Payload, key.word())
}

// WriteFrame writes a frame to dst, masked with the key unless that is [Unmasked], in one call of Write. Frames of up to
// 16 KiB are written without an allocation.
func WriteFrame(dst io.Writer, key MaskingKey, frame *Frame) error {
	var err error
	if maxHeaderLen+len(frame.Payload) <= bufferLen {
		buffer := buffers.Get().(*[bufferLen]byte)
		_, err = dst.Write(appendFrame(buffer[:0], frame.header, frame.Payload, key.word()))
		buffers.Put(buffer)
	} else {
		_, err = dst.Write(MarshalFrame(frame, key))
	}
	if err != nil {
		return ioError("error writing frame", err)
	}
	return nil
}

// headers holds the memory into which ReadFrame reads headers.
var headers = sync.Pool{New: func() any { return new([maxHeaderLen]byte) }}

// ReadFrame reads one frame from src, unmasked, with a payload of at most maxPayloadLen bytes. In [ServerMode] the frame must
// be masked. Opcodes, reserved bits and payloads are not validated: [Websocket.ReadMessage] does that.
//
// ReadFrame reads no further than the frame ends, so that it costs a read of src for the first two bytes, one for the rest
// of the header and one for the payload. A [Websocket] reads many frames at once.
func ReadFrame(src io.Reader, mode Mode, maxPayloadLen int) (*Frame, error) {
	header := headers.Get().(*[maxHeaderLen]byte)
	frame, err := readFrame(src, mode, max(0, maxPayloadLen), header)
	headers.Put(header)
	return frame, err
}

func readFrame(src io.Reader, mode Mode, maxPayloadLen int, header *[maxHeaderLen]byte) (*Frame, error) {
	if _, err := io.ReadFull(src, header[:2]); err != nil {
		return nil, ioError("error reading frame header", err)
	}
	first, masked, short := header[0], header[1]&maskBit != 0, header[1]&lenBits
	if mode == ServerMode && !masked {
		return nil, ErrClientFrameUnmasked
	}
	extended, size := 0, uint64(short)
	if short == len16 {
		extended = 2
	} else if short == len64 {
		extended = 8
	}
	rest := header[2 : 2+extended]
	if masked {
		rest = header[2 : 2+extended+4]
	}
	n, err := io.ReadFull(src, rest)
	if n < extended {
		return nil, ioError(fmt.Sprintf("error reading %d-byte extended payload length", extended), err)
	}
	if extended == 2 {
		size = uint64(binary.BigEndian.Uint16(rest))
	} else if extended == 8 {
		size = binary.BigEndian.Uint64(rest)
	}
	switch {
	case size > uint64(maxPayloadLen):
		return nil, ErrFrameTooLarge
	case !isMinimal(extended, size):
		return nil, ErrFrameLengthInvalid
	case err != nil:
		if n == extended {
			err = io.EOF
		}
		return nil, ioError("error reading mask key", err)
	}
	payload := make([]byte, reserveLen(0, size))
	read, err := io.ReadFull(src, payload)
	for err == nil && uint64(read) < size {
		payload = append(payload, make([]byte, reserveLen(read, size-uint64(read)))...)
		read, err = readMore(src, payload, read)
	}
	if err != nil {
		return nil, ioError(fmt.Sprintf("error reading %d byte payload", size), err)
	}
	if masked {
		mask(payload, payload, binary.LittleEndian.Uint32(rest[extended:]))
	}
	return &Frame{Payload: payload, header: first}, nil
}

func readMore(src io.Reader, payload []byte, from int) (int, error) {
	n, err := io.ReadFull(src, payload[from:])
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return from + n, err
}

// reserveLen returns how much more memory to reserve for a payload, of which some has arrived and the rest is announced, in
// bytes: what a peer makes us reserve is at most 64 KiB more than it has sent or 16 times that, whichever is more, and from
// 1 MiB on twice.
func reserveLen(arrived int, rest uint64) int {
	return int(min(rest, uint64(max(trustedLen, min(15*arrived, reserveMax-arrived), arrived))))
}

// isMinimal reports whether the length needs the extended form that it has (RFC 6455 §5.2).
func isMinimal(extended int, size uint64) bool {
	return extended == 0 || extended == 2 && size >= len16 || extended == 8 && size > 0xFFFF
}

// frameHeader is a decoded header, and the place in its payload.
type frameHeader struct {
	// remaining is how much of the payload has not been consumed, in bytes.
	remaining uint64
	// key masks the next byte of the payload; 0 if masked is false.
	key      uint32
	first    byte
	masked   bool
	extended uint8
}

func (h *frameHeader) opcode() Opcode { return Opcode(h.first & opcodeBits) }
func (h *frameHeader) fin() bool      { return h.first&finBit != 0 }

// parseHeader decodes the header at the beginning of b and returns its length, 0 if b ends within it.
func parseHeader(b []byte) (h frameHeader, n int) {
	if len(b) < 2 {
		return h, 0
	}
	h.first, h.masked = b[0], b[1]&maskBit != 0
	n = 2
	switch short := b[1] & lenBits; short {
	case len16:
		if len(b) < 4 {
			return h, 0
		}
		h.remaining, h.extended, n = uint64(binary.BigEndian.Uint16(b[2:])), 2, 4
	case len64:
		if len(b) < 10 {
			return h, 0
		}
		h.remaining, h.extended, n = binary.BigEndian.Uint64(b[2:]), 8, 10
	default:
		h.remaining = uint64(short)
	}
	if h.masked {
		if len(b) < n+4 {
			return h, 0
		}
		h.key = binary.LittleEndian.Uint32(b[n:])
		n += 4
	}
	return h, n
}
