package websocket

import (
	"sync"
	"sync/atomic"
)

const (
	// bufferLen is the size of a read buffer and of a frame that is written at once, in bytes. It stays in the first-level
	// cache, and is large enough that system calls cost little per small frame.
	bufferLen = 16<<10 + 64
	// smallLen is the size of the read buffer of a connection whose idle wait holds one, in bytes.
	smallLen = 4 << 10
	// chunkLen is how much of a large frame is masked and written at once, in bytes.
	chunkLen = 64 << 10
)

var (
	buffers = sync.Pool{New: func() any { return new([bufferLen]byte) }}
	smalls  = sync.Pool{New: func() any { return new([smallLen]byte) }}
	chunks  = sync.Pool{New: func() any { return new([chunkLen]byte) }}
)

// lock is a mutex whose waiters can give up. state is 0 if it is free, 1 if it is held, and 2 if there may be waiters: then
// unlocking puts a token into the channel wake, which the first waiter makes: most connections never need one.
type lock struct {
	state atomic.Int32
	wake  atomic.Pointer[chan struct{}]
}

// waker returns the channel of those who wait.
func (l *lock) waker() chan struct{} {
	if wake := l.wake.Load(); wake != nil {
		return *wake
	}
	wake := make(chan struct{}, 1)
	l.wake.CompareAndSwap(nil, &wake)
	return *l.wake.Load()
}

// tryLock takes the lock if it is free.
func (l *lock) tryLock() bool { return l.state.CompareAndSwap(0, 1) }

// lock waits until the lock is free or done is closed, and reports whether it holds the lock.
func (l *lock) lock(done <-chan struct{}) bool {
	if l.tryLock() {
		return true
	}
	for l.state.Swap(2) != 0 {
		select {
		case <-l.waker():
		case <-done:
			return false
		}
	}
	return true
}

func (l *lock) unlock() {
	if l.state.Swap(0) == 2 {
		select {
		case l.waker() <- struct{}{}:
		default: // a token is there already
		}
	}
}
