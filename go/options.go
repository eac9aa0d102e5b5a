package websocket

import (
	"net/http"
	"time"
)

// Defaults of [Options].
const (
	// DefaultMaxFrameSize is the default of [Options.MaxFrameSize].
	DefaultMaxFrameSize int = 16 << 10
	// DefaultMaxMessageSize is the default of [Options.MaxMessageSize].
	DefaultMaxMessageSize int = 256 << 10
	// DefaultCloseTimeout is the default of [Options.CloseTimeout] without a ReadTimeout.
	DefaultCloseTimeout = 5 * time.Second
)

// Mode is the role of an end of the connection.
type Mode bool

// The roles. A client masks its frames, a server does not (RFC 6455 §5.1).
const (
	ServerMode Mode = false
	ClientMode Mode = true
)

// String returns "server" or "client".
func (m Mode) String() string {
	if m == ServerMode {
		return "server"
	}
	return "client"
}

// Options are the settings of a connection. The zero value is ready for use.
type Options struct {
	Hooks Hooks
	// ReadTimeout bounds the wait for the next bytes of the peer, from each read to the next. 0: no bound.
	ReadTimeout time.Duration
	// WriteTimeout bounds the write of each frame. 0: no bound.
	WriteTimeout time.Duration
	// CloseTimeout bounds the closing handshake as a whole, with the wait for the peer's disconnect behind it. 0: ReadTimeout
	// or, if that is 0 too, [DefaultCloseTimeout].
	CloseTimeout time.Duration
	// MaxFrameSize is the largest payload of a frame that is received, in bytes; longer messages are sent in frames of this
	// size. 0: [DefaultMaxFrameSize].
	MaxFrameSize int
	// MaxMessageSize is the largest message that is received, in bytes, before and after inflation. 0:
	// [DefaultMaxMessageSize].
	MaxMessageSize int

	// Compression enables permessage-deflate (RFC 7692) if the peer supports it too. nil: no compression.
	Compression *Compression
	// Subprotocols are those that a server supports, the best first. [Accept] selects the first that the client offers. nil: the
	// Sec-WebSocket-Protocol field that the application has set in the response.
	Subprotocols []string
	// CheckOrigin decides whether [Accept] accepts a request. nil accepts all, which lets every web page that a user visits
	// open connections with the user's cookies; [SameOrigin] refuses the pages of other sites.
	CheckOrigin func(r *http.Request) bool
	// Tracker closes the connections at shutdown.
	Tracker *Tracker
}

// Hooks are called on the events of a connection. Each may be nil. They get the [ClientKey] of the connection first.
//
// The hooks of reading run on the goroutine that reads, those of writing on the one that writes, while no other goroutine
// can do so: they must not read, write or close. One that closes its own connection waits in vain, for [Options.CloseTimeout]. They
// must not keep a [Frame]'s payload.
type Hooks struct {
	// OnCloseHandshakeStart is called before this end sends a Close frame that starts the closing handshake.
	OnCloseHandshakeStart func(ClientKey, StatusCode, error)
	// OnCloseHandshakeDone is called when the closing handshake is complete, or has been given up because of the error.
	OnCloseHandshakeDone func(ClientKey, StatusCode, error)
	// OnReadError is called when a read fails or the peer breaks the protocol.
	OnReadError func(ClientKey, error)
	// OnReadFrame is called after each valid frame. The payload of a compressed message is still compressed.
	OnReadFrame func(ClientKey, *Frame)
	// OnReadMessage is called before a message is returned.
	OnReadMessage func(ClientKey, *Message)
	// OnWriteError is called when a write fails.
	OnWriteError func(ClientKey, error)
	// OnWriteFrame is called before a frame is written.
	OnWriteFrame func(ClientKey, *Frame)
	// OnWriteMessage is called before a message is written.
	OnWriteMessage func(ClientKey, *Message)
}

func (o *Options) setDefaults() {
	if o.MaxFrameSize <= 0 {
		o.MaxFrameSize = DefaultMaxFrameSize
	}
	if o.MaxMessageSize <= 0 {
		o.MaxMessageSize = DefaultMaxMessageSize
	}
	if o.CloseTimeout <= 0 {
		o.CloseTimeout = o.ReadTimeout
	}
	if o.CloseTimeout <= 0 {
		o.CloseTimeout = DefaultCloseTimeout
	}
}
