package attach

import (
	"context"
	"sync"
)

// Keyed is a lock for each key: calls about one sandbox follow one another, calls about different ones run side
// by side. The zero value is ready. Nothing is kept for keys that nobody holds or waits for.
type Keyed[K comparable] struct {
	mu    sync.Mutex
	slots map[K]*slot
}

// slot is the lock of one key. Its channel has room for one token: who has put it there holds the lock.
type slot struct {
	token chan struct{}
	users int
}

// Lock waits until the key is free, takes it, and returns what frees it again, to be called once. It gives up
// with ctx's error when ctx ends first. Waiters are served in the order they came.
func (k *Keyed[K]) Lock(ctx context.Context, key K) (unlock func(), err error) {
	s := k.enter(key)
	select {
	case s.token <- struct{}{}:
	default:
		select {
		case s.token <- struct{}{}:
		case <-ctx.Done():
			k.leave(key, s)
			return nil, context.Cause(ctx)
		}
	}
	return sync.OnceFunc(func() {
		<-s.token
		k.leave(key, s)
	}), nil
}

func (k *Keyed[K]) enter(key K) *slot {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.slots == nil {
		k.slots = map[K]*slot{}
	}
	s := k.slots[key]
	if s == nil {
		s = &slot{token: make(chan struct{}, 1)}
		k.slots[key] = s
	}
	s.users++
	return s
}

func (k *Keyed[K]) leave(key K, s *slot) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s.users--
	if s.users == 0 {
		delete(k.slots, key)
	}
}
