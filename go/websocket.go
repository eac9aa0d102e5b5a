package websocket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// Websocket is an open WebSocket connection. Its methods may be called at the same time from several goroutines: messages
// are written one after another, reads wait for each other, and neither waits for the other.
type Websocket struct {
	conn        net.Conn
	mode        Mode
	clientKey   ClientKey
	subprotocol string
	hooks       *Hooks
	tracker     *Tracker
	codec       *codec // of permessage-deflate; nil if it was not negotiated
	cancel      func() // releases what Dial needed; nil for others

	closeTimeout   time.Duration
	maxFrameSize   int
	maxMessageSize int

	state  atomic.Int32
	reader reader
	writer writer
}

// The states of RFC 6455 §7, in their order. A connection is closing from the first Close frame in either direction, and
// lingers from the end of the closing handshake until the peer has disconnected.
const (
	stateOpen int32 = iota
	stateClosing
	stateLingering
	stateClosed
)

// noHooks is shared by the connections without hooks.
var noHooks Hooks

// New returns a WebSocket over a connection whose opening handshake is complete. [Accept] and [Dial] do both.
func New(conn net.Conn, clientKey ClientKey, mode Mode, opts Options) *Websocket {
	return newWebsocket(conn, clientKey, mode, &opts, nil).track()
}

func newWebsocket(conn net.Conn, clientKey ClientKey, mode Mode, opts *Options, deflate *deflateParams) *Websocket {
	opts.setDefaults()
	ws := &Websocket{
		conn:           conn,
		mode:           mode,
		clientKey:      clientKey,
		hooks:          &noHooks,
		tracker:        opts.Tracker,
		closeTimeout:   opts.CloseTimeout,
		maxFrameSize:   opts.MaxFrameSize,
		maxMessageSize: opts.MaxMessageSize,
	}
	if !opts.Hooks.isZero() {
		hooks := opts.Hooks
		ws.hooks = &hooks
	}
	if deflate != nil {
		ws.codec = newCodec(mode, deflate, opts.Compression)
	}
	if conn != nil {
		ws.reader.deadline.set, ws.writer.deadline.set = conn.SetReadDeadline, conn.SetWriteDeadline
		ws.reader.source = newSource(conn)
		// TLS answers a KeyUpdate while it reads (RFC 8446 §4.6.3).
		_, ws.writer.deadline.clears = conn.(interface{ Handshake() error })
	}
	ws.reader.deadline.timeout, ws.writer.deadline.timeout = opts.ReadTimeout, opts.WriteTimeout
	return ws
}

// track makes the connection known to its Tracker.
func (ws *Websocket) track() *Websocket {
	if ws.tracker != nil {
		ws.tracker.add(ws)
	}
	return ws
}

// ClientKey returns the key that identifies the connection in [Hooks].
func (ws *Websocket) ClientKey() ClientKey { return ws.clientKey }

// Subprotocol returns the subprotocol that was negotiated, "" if none.
func (ws *Websocket) Subprotocol() string { return ws.subprotocol }

// Handler handles a message. If it returns a message, that is sent. If it returns an error, the connection is closed with
// the error's status code or, if it is no [Error], with [StatusInternalError] and its text as the reason: such errors must
// not contain what the peer may not know. A code that must not be sent becomes StatusInternalError.
type Handler func(ctx context.Context, msg *Message) (*Message, error)

// EchoHandler is a [Handler] that sends each message back.
var EchoHandler Handler = func(_ context.Context, msg *Message) (*Message, error) { return msg, nil }

// Handle reads messages and passes them to the handler until the connection ends, and closes it.
//
// It returns nil when the peer closed the connection, with a Close frame or without; the error of the handler; or that of a
// read or write, after which the peer is told the reason in a Close frame. Its answer is not waited for: the connection closes
// in the background when the peer disconnects, at the latest after [Options.CloseTimeout]. A handler that panics closes the
// connection too.
func (ws *Websocket) Handle(ctx context.Context, handler Handler) error {
	returned := false
	defer func() {
		if !returned {
			_ = ws.fail(newError(StatusInternalError, "internal error"))
		}
	}()
	err := ws.handle(ctx, handler)
	returned = true
	return err
}

func (ws *Websocket) handle(ctx context.Context, handler Handler) error {
	for {
		msg, err := ws.ReadMessage(ctx)
		if errors.Is(err, io.EOF) {
			ws.disconnected(err)
			return nil
		}
		if err != nil {
			return ws.fail(err)
		}
		reply, err := handler(ctx, msg)
		if err != nil {
			status, reason := handlerReason(err)
			if closeErr := ws.close(status, reason, err); closeErr != nil {
				return fmt.Errorf("websocket: handle: closing after an error of the handler: %w: %w", err, closeErr)
			}
			return err
		}
		if reply != nil {
			if err := ws.WriteMessage(ctx, reply); err != nil {
				return ws.fail(err)
			}
		}
	}
}

// Close closes the connection with [StatusNormalClosure]. See [Websocket.CloseWithStatus].
func (ws *Websocket) Close() error {
	return ws.CloseWithStatus(StatusNormalClosure, "")
}

// CloseWithStatus performs the closing handshake: it sends a Close frame, waits for the peer's, for at most
// [Options.CloseTimeout], and closes the connection: in the background if the handshake fails, like [Websocket.Handle].
// Messages that arrive meanwhile are discarded. A pending ReadMessage returns [io.EOF].
//
// It returns [ErrConnectionClosed] if the connection was closing or closed before.
func (ws *Websocket) CloseWithStatus(status StatusCode, reason string) error {
	return ws.close(status, reason, nil)
}

func (ws *Websocket) close(status StatusCode, reason string, cause error) error {
	if !ws.startClosing() {
		return ErrConnectionClosed
	}
	defer ws.end() // a hook may panic
	err := ws.startHandshake(closeFrame(status, reason), status, cause)
	if err != nil {
		ws.closeDone(status, err)
		return fmt.Errorf("websocket: close: failed to write close frame: %w", err)
	}
	// A pending ReadMessage completes the handshake; then there is nothing left to wait for.
	err = ws.lockToClose(&ws.reader.lock)
	if err == nil {
		defer ws.reader.lock.unlock()
	}
	if ws.state.Load() != stateClosing {
		return nil
	}
	if err == nil {
		_, err = ws.readMessage(context.Background(), nil)
	}
	ws.closeDone(status, err) // unless the peer's Close frame has done it
	if errors.Is(err, io.EOF) || errors.Is(err, ErrConnectionClosed) {
		return nil
	}
	return fmt.Errorf("websocket: close: read failed while waiting for reply: %w", err)
}

// closeFrame is [NewCloseFrame] with a reason of any bytes: errors quote anything, and RFC 6455 §5.5.1 wants UTF-8.
func closeFrame(status StatusCode, reason string) *Frame {
	return NewCloseFrame(status, strings.ToValidUTF8(reason, string(utf8.RuneError)))
}

// startHandshake sends the Close frame of this end.
func (ws *Websocket) startHandshake(frame *Frame, status StatusCode, cause error) error {
	if err := ws.lockToClose(&ws.writer.lock); err != nil {
		return err
	}
	defer ws.writer.lock.unlock()
	ws.hooks.closeStart(ws.clientKey, status, cause)
	return ws.writeClose(frame)
}

// sendClose sends a Close frame, unless one was sent before.
func (ws *Websocket) sendClose(frame *Frame) error {
	if err := ws.lockToClose(&ws.writer.lock); err != nil {
		return err
	}
	defer ws.writer.lock.unlock()
	return ws.writeClose(frame)
}

// lockToClose gets the right to read or to write in the closing handshake. The deadline bounds the holder, unless that is a hook:
// one that closes its own connection waits here for itself.
func (ws *Websocket) lockToClose(lock *lock) error {
	if lock.tryLock() {
		return nil
	}
	bound, cancel := context.WithTimeout(context.Background(), ws.closeTimeout)
	defer cancel()
	if !lock.lock(bound.Done()) {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// startClosing begins the closing handshake, and bounds the waits of both directions. It reports whether the connection
// was open.
func (ws *Websocket) startClosing() bool {
	if !ws.state.CompareAndSwap(stateOpen, stateClosing) {
		return false
	}
	at := time.Now().Add(ws.closeTimeout)
	ws.reader.deadline.close(at)
	ws.writer.deadline.close(at)
	return true
}

// fail closes the connection because of an error, without waiting for the peer's Close frame (RFC 6455 §7.1.7), and
// returns the error.
func (ws *Websocket) fail(cause error) error {
	if ws.startClosing() {
		defer ws.end() // a hook may panic
		status, reason := closeReason(cause)
		_ = ws.sendClose(closeFrame(status, reason)) // the cause matters more
		ws.closeDone(status, cause)
	}
	return cause
}

// disconnected closes the connection after the end of its input, unless there is a closing handshake.
func (ws *Websocket) disconnected(err error) {
	if ws.startClosing() {
		defer ws.finish() // a hook may panic
		ws.closeDone(StatusAbnormalClose, err)
	}
}

// peerClosed answers the peer's Close frame.
func (ws *Websocket) peerClosed(payload []byte) error {
	status := closeCode(payload)
	if ws.startClosing() {
		defer ws.end() // a hook may panic
	} else {
		defer ws.finish() // a peer that answers has received everything
	}
	// RFC 6455 §5.5.1: the reply typically repeats the code.
	reply := NewFrame(OpcodeClose, true, payload)
	if status == StatusNoStatusRcvd {
		reply = NewCloseFrame(StatusNormalClosure, "")
	}
	err := ws.sendClose(reply)
	ws.closeDone(status, err)
	if err != nil {
		return err
	}
	return io.EOF
}

// closeDone ends the closing handshake.
func (ws *Websocket) closeDone(status StatusCode, err error) {
	if ws.state.CompareAndSwap(stateClosing, stateLingering) && ws.hooks.OnCloseHandshakeDone != nil {
		ws.hooks.OnCloseHandshakeDone(ws.clientKey, status, err)
	}
}

// halfCloser is a connection that can end its output alone: TCP, a Unix socket or TLS.
type halfCloser interface{ CloseWrite() error }

// end closes the connection after the closing handshake. Closing a socket with unread input resets it, and the peer loses
// what it has not received yet: a connection whose output can end alone lingers (RFC 6455 §7.1.1).
func (ws *Websocket) end() {
	half, ok := ws.conn.(halfCloser)
	if !ok || ws.state.Load() == stateClosed {
		ws.finish()
		return
	}
	go ws.linger(half)
}

// linger ends the output, and discards the input until the peer has disconnected or the time of the closing handshake is over.
func (ws *Websocket) linger(half halfCloser) {
	defer ws.finish()
	_ = half.CloseWrite() // an error means that the peer learns of the end later
	in := &ws.reader
	if ws.lockToClose(&in.lock) != nil {
		return
	}
	defer in.lock.unlock()
	err := in.deadline.start(context.Background())
	for err == nil {
		in.r, in.w = 0, 0
		_, err = in.source.fill(in)
	}
}

// finish closes the connection.
func (ws *Websocket) finish() {
	if ws.state.Swap(stateClosed) == stateClosed {
		return
	}
	_ = ws.conn.Close() // nothing can be done about an error
	ws.reader.deadline.stopWatch()
	ws.writer.deadline.stopWatch()
	if ws.cancel != nil {
		ws.cancel()
	}
	if ws.tracker != nil {
		ws.tracker.remove(ws)
	}
}

func (h *Hooks) isZero() bool {
	return h.OnCloseHandshakeStart == nil && h.OnCloseHandshakeDone == nil && h.OnReadError == nil && h.OnReadFrame == nil &&
		h.OnReadMessage == nil && h.OnWriteError == nil && h.OnWriteFrame == nil && h.OnWriteMessage == nil
}

func (h *Hooks) closeStart(key ClientKey, status StatusCode, cause error) {
	if h.OnCloseHandshakeStart != nil {
		h.OnCloseHandshakeStart(key, status, cause)
	}
}

// Tracker knows the open connections whose [Options] name it, and closes them at shutdown: [http.Server.Shutdown] does not
// wait for connections that it has handed over. The zero value is ready for use.
type Tracker struct {
	mu    sync.Mutex
	conns map[*Websocket]struct{}
	phase trackerPhase
	// empty is closed when the last connection is removed after Shutdown.
	empty chan struct{}
}

// trackerPhase says what becomes of a connection that is opened.
type trackerPhase uint8

const (
	trackerOpen trackerPhase = iota
	// Shutdown was called: it is closed.
	trackerClosing
	// The context of a Shutdown has ended: it is closed without a handshake.
	trackerAborting
)

func (t *Tracker) add(ws *Websocket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conns == nil {
		t.conns = make(map[*Websocket]struct{})
	}
	t.conns[ws] = struct{}{}
	switch t.phase {
	case trackerOpen:
	case trackerClosing:
		go func() { _ = ws.CloseWithStatus(StatusGoingAway, "") }()
	case trackerAborting:
		go ws.finish()
	}
}

func (t *Tracker) remove(ws *Websocket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, ws)
	if t.empty != nil && len(t.conns) == 0 {
		close(t.empty)
		t.empty = nil
	}
}

// Len returns the number of open connections.
func (t *Tracker) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.conns)
}

// Shutdown closes all connections with [StatusGoingAway], those that are opened later too, and waits until they are closed.
// When the context ends first, it closes the rest without a handshake, and each that is opened later, and returns the context's error.
//
// Call it before [http.Server.Shutdown], or from [http.Server.RegisterOnShutdown].
func (t *Tracker) Shutdown(ctx context.Context) error {
	open, empty := t.enter(trackerClosing)
	if len(open) == 0 {
		return nil
	}
	for _, ws := range open {
		go func() { _ = ws.CloseWithStatus(StatusGoingAway, "") }()
	}
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
	}
	// Others were opened meanwhile.
	open, _ = t.enter(trackerAborting)
	for _, ws := range open {
		ws.finish()
	}
	return ctx.Err()
}

// enter begins a phase, unless a later one has begun. It returns the open connections, and what is closed when the last of
// them is removed.
func (t *Tracker) enter(phase trackerPhase) ([]*Websocket, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.phase = max(t.phase, phase)
	open := make([]*Websocket, 0, len(t.conns))
	for ws := range t.conns {
		open = append(open, ws)
	}
	if len(open) > 0 && t.empty == nil {
		t.empty = make(chan struct{})
	}
	return open, t.empty
}
