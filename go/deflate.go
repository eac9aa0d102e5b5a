package websocket

import (
	"bytes"
	"compress/flate"
	"errors"
	"io"
	"math"
	"slices"
	"sync"
)

// Compression are the settings of permessage-deflate (RFC 7692). The zero value is ready for use.
type Compression struct {
	// Level is that of [compress/flate], or the nearest to it. 0: [flate.BestSpeed].
	Level int
	// MinSize is the size in bytes from which messages are compressed. 0: 128, below which compression gains nothing.
	MinSize int
	// ContextTakeover lets both ends refer to their earlier messages, which compresses small messages much better. Each
	// connection then keeps a compressor, about 1 MiB, and the last 32 KiB that it received. Without it, connections share
	// the memory.
	ContextTakeover bool
}

// defaultMinSize is the default of [Compression.MinSize], in bytes.
const defaultMinSize = 128

// windowLen is the largest window of DEFLATE, in bytes (RFC 1951 §2).
const windowLen = 32 << 10

// flushTail ends a flushed DEFLATE block. Senders remove it and receivers add it (RFC 7692 §7.2.1, §7.2.2).
var flushTail = []byte{0x00, 0x00, 0xFF, 0xFF}

// inflateTail is flushTail and an empty final block, after which the inflater reports the end.
var inflateTail = []byte{0x00, 0x00, 0xFF, 0xFF, 0x01, 0x00, 0x00, 0xFF, 0xFF}

// codec compresses the sent and inflates the received messages of a connection.
type codec struct {
	level   int
	minSize int
	// segment is the size of the window that was negotiated for sending, in bytes; 0 for the largest.
	segment int
	// kept is the compressor with context takeover, from the first message on; the lock of the writer guards it.
	keeps bool
	kept  *compressor
	// window is what received messages may refer to, with context takeover; the lock of the reader guards it.
	keepsWindow bool
	window      []byte
	// windowLost is true after a message was refused that the window should have.
	windowLost bool
}

func newCodec(mode Mode, params *deflateParams, opts *Compression) *codec {
	c := &codec{level: opts.level(), minSize: opts.MinSize}
	if c.minSize <= 0 {
		c.minSize = defaultMinSize
	}
	sent, received := params.server, params.client
	if mode == ClientMode {
		sent, received = params.client, params.server
	}
	if sent.bits < 15 {
		// compress/flate has one size of window. A match cannot reach back beyond the beginning of the stream, so a stream
		// of its own for each window of data keeps to a smaller one. The fastest level resets fast.
		c.segment, c.level = 1<<sent.bits, flate.BestSpeed
	}
	c.keeps = opts.ContextTakeover && !sent.noTakeover && c.segment == 0
	c.keepsWindow = !received.noTakeover
	return c
}

func (c *Compression) level() int {
	if c.Level == 0 {
		return flate.BestSpeed
	}
	return max(flate.HuffmanOnly, min(c.Level, flate.BestCompression))
}

func (c *codec) isWorthwhile(n int) bool { return n >= c.minSize }

// compressor is a DEFLATE stream into a buffer.
type compressor struct {
	flate *flate.Writer
	out   *bytes.Buffer
}

func (c *compressor) Write(p []byte) (int, error) { return c.out.Write(p) }

// compressors holds unused compressors by their level, from flate.HuffmanOnly to flate.BestCompression.
var compressors [flate.BestCompression - flate.HuffmanOnly + 1]sync.Pool

var outputs = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxPooledLen is the size of the largest buffer that is kept for reuse, in bytes.
const maxPooledLen = 64 << 10

func newCompressor(level int) *compressor {
	if pooled, ok := compressors[level-flate.HuffmanOnly].Get().(*compressor); ok {
		pooled.flate.Reset(pooled)
		return pooled
	}
	c := &compressor{}
	c.flate, _ = flate.NewWriter(c, level) // fails only for an invalid level
	return c
}

// compress returns the compressed payload (RFC 7692 §7.2.1), for release.
func (c *codec) compress(payload []byte) *bytes.Buffer {
	out := outputs.Get().(*bytes.Buffer)
	out.Reset()
	deflater := c.kept
	if deflater == nil {
		deflater = newCompressor(c.level)
	}
	deflater.out = out
	if c.segment == 0 {
		deflater.add(payload)
	}
	for c.segment > 0 && len(payload) > 0 {
		n := min(len(payload), c.segment)
		deflater.add(payload[:n])
		if payload = payload[n:]; len(payload) > 0 {
			deflater.flate.Reset(deflater)
		}
	}
	deflater.out = nil
	out.Truncate(out.Len() - len(flushTail))
	if c.keeps {
		c.kept = deflater
		return out
	}
	c.pool(deflater)
	return out
}

func (c *codec) pool(deflater *compressor) {
	compressors[c.level-flate.HuffmanOnly].Put(deflater)
}

// forget empties the window for sending after a message that the peer has not received. The peer keeps its own, to which
// nothing refers any more.
func (c *codec) forget() {
	if c.kept != nil {
		c.pool(c.kept)
		c.kept = nil
	}
}

// add compresses a part of a message up to a byte boundary. Writes into a buffer do not fail.
func (c *compressor) add(part []byte) {
	_, _ = c.flate.Write(part)
	_ = c.flate.Flush()
}

// loseWindow is called for a compressed message that is refused: later ones may refer to it.
func (c *codec) loseWindow() { c.windowLost = c.keepsWindow }

func (c *codec) release(out *bytes.Buffer) {
	if out.Cap() <= maxPooledLen {
		outputs.Put(out)
	}
}

// inflater is a DEFLATE stream from a message and the tail that its sender removed.
type inflater struct {
	flate      io.ReadCloser
	data, tail []byte
}

var inflaters = sync.Pool{New: func() any {
	i := &inflater{}
	i.flate = flate.NewReader(i)
	return i
}}

func (i *inflater) Read(p []byte) (int, error) {
	if len(i.data) == 0 {
		i.data, i.tail = i.tail, nil
	}
	if len(i.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, i.data)
	i.data = i.data[n:]
	return n, nil
}

// ReadByte makes the DEFLATE stream read no more than it needs.
func (i *inflater) ReadByte() (byte, error) {
	var b [1]byte
	_, err := i.Read(b[:])
	return b[0], err
}

// reset starts a stream that may refer to the window.
func (i *inflater) reset(window []byte) {
	_ = i.flate.(flate.Resetter).Reset(i, window) // never fails
}

// decompress inflates a message into the memory of into, or new memory (RFC 7692 §7.2.2). It stops as soon as the message is
// larger than maxSize, whatever the data would inflate to.
func (c *codec) decompress(data, into []byte, maxSize int) ([]byte, error) {
	if c.windowLost {
		return nil, ErrInvalidDeflate // or, worse, it would be inflated to something else
	}
	if len(data) == 0 {
		return into[:0], nil // no valid stream, but nothing else can be meant
	}
	i := inflaters.Get().(*inflater)
	defer func() {
		i.data, i.tail = nil, nil
		inflaters.Put(i)
	}()
	i.data, i.tail = data, inflateTail
	i.reset(c.window)
	out := into[:0]
	// One byte more than allowed, to see that there is more; math.MaxInt is what no message can exceed.
	limit := min(maxSize, math.MaxInt-1) + 1
	// Where the current DEFLATE stream starts in out, and whether that is not the first one of the message.
	start, restarted := 0, false
	for {
		if len(out) == cap(out) {
			room := min(max(512, 3*len(data), len(out)), limit-len(out))
			out = slices.Grow(out, room)
		}
		room := min(cap(out), limit) - len(out)
		n, err := i.flate.Read(out[len(out) : len(out)+room])
		out = out[:len(out)+n]
		switch {
		case len(out) > maxSize:
			return nil, ErrMessageTooLarge
		case err == nil:
		case !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return nil, ErrInvalidDeflate
		case i.tail == nil && len(i.data) > 0 && len(i.data) != len(inflateTail)-len(flushTail):
			// A block of the sender ended within the tail: the message was cut.
			return nil, ErrInvalidDeflate
		case i.tail == nil || len(i.data) == 0:
			if i.tail != nil || len(i.data) > 0 {
				start, restarted = len(out), true // the sender's final block ends the message, not that of inflateTail
			}
			if c.keepsWindow {
				if restarted {
					c.window = c.window[:0]
				}
				c.window = appendWindow(c.window, out[start:])
			}
			return out, nil
		default:
			// RFC 7692 §7.2.3.4: a final block may be followed by others. They are a stream of their own (RFC 1951 §3.2.3), whose window
			// is empty at first, as is that of the next message after a final block.
			start, restarted = len(out), true
			i.reset(nil)
		}
	}
}

// appendWindow returns the last bytes of window and data.
func appendWindow(window, data []byte) []byte {
	if len(data) >= windowLen {
		return append(window[:0], data[len(data)-windowLen:]...)
	}
	if excess := len(window) + len(data) - windowLen; excess > 0 {
		window = append(window[:0], window[excess:]...)
	}
	return append(window, data...)
}
