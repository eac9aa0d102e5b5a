package websocket

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// past is a deadline that interrupts a read or a write.
var past = time.Unix(1, 0)

// deadline is the deadline of one direction of the connection: the nearest of a timeout, the end of a context, and the
// bound of the closing handshake.
//
// A context is watched from its first wait to that of the next context, not once per call, so that a loop over one context
// costs nothing.
type deadline struct {
	set     func(time.Time) error
	timeout time.Duration
	// clears is true if the connection writes on its own between the waits, as TLS does: a deadline ends with its wait.
	// Otherwise it stays set until the next one, which costs less.
	clears bool

	// plain is true while no deadline is set and no context has ended: nothing has to be done without a timeout.
	plain atomic.Bool
	// done is that of the watched context. Only the goroutine that may read or write uses it.
	done <-chan struct{}

	mu sync.Mutex
	// stop ends the watch of the context.
	stop func() bool
	// watch counts the watched contexts.
	watch int
	// interrupted is true after the watched context has ended.
	interrupted bool
	// waiting is true from start to end, if clears.
	waiting bool
	// isSet is true if the connection has a deadline.
	isSet bool
	// closing is the bound of the closing handshake; zero before it.
	closing time.Time
	// closed is true after the connection has been closed: no context is watched any more.
	closed bool
}

// start prepares for a wait. It fails if the context has ended.
func (d *deadline) start(ctx context.Context) error {
	done := ctx.Done()
	if done == d.done && d.timeout == 0 && d.plain.Load() {
		return nil
	}
	return d.startSlow(ctx, done)
}

func (d *deadline) startSlow(ctx context.Context, done <-chan struct{}) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if done != d.done {
		d.release()
		d.done, d.interrupted = done, false
		if done != nil && !d.closed {
			watch := d.watch
			d.stop = context.AfterFunc(ctx, func() { d.interrupt(watch) })
		}
	}
	if d.interrupted {
		return ctx.Err()
	}
	d.waiting = d.clears
	var at time.Time
	if !d.closing.IsZero() {
		at = d.closing
	} else if d.timeout > 0 {
		at = time.Now().Add(d.timeout)
	}
	if at.IsZero() && !d.isSet {
		d.plain.Store(!d.clears)
		return nil
	}
	d.isSet = !at.IsZero()
	d.plain.Store(!d.isSet && !d.clears)
	return d.set(at)
}

// end is called after a wait.
func (d *deadline) end() {
	if d.clears {
		d.endSlow()
	}
}

func (d *deadline) endSlow() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = false
	if d.isSet && d.closing.IsZero() {
		d.isSet = false
		_ = d.set(time.Time{}) // fails only if the connection is closed
	}
}

// release ends the watch of the context.
func (d *deadline) release() {
	if d.stop != nil {
		d.stop()
		d.stop = nil
	}
	d.watch++
}

// interrupt ends the waits of a context.
func (d *deadline) interrupt(watch int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if watch == d.watch {
		d.interrupted = true
		d.plain.Store(false)
		if d.clears && !d.waiting {
			return
		}
		d.isSet = true
		_ = d.set(past) // fails only if the connection is closed, which ends the wait as well
	}
}

// close bounds all waits by the end of the closing handshake.
func (d *deadline) close(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closing = at
	d.plain.Store(false)
	if !d.interrupted {
		d.isSet = true
		_ = d.set(at)
	}
}

// stopWatch ends all watches when the connection is closed.
func (d *deadline) stopWatch() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.release()
	d.closed = true
}

// ended returns the error of the context if that is why a wait failed, else nil.
func ended(ctx context.Context, err error) error {
	var timeout interface{ Timeout() bool }
	if errors.Is(err, context.Canceled) || errors.As(err, &timeout) && timeout.Timeout() {
		return ctx.Err()
	}
	return nil
}
