package attach

import (
	"context"
	"sync"
)

// Keyed is a lock for each key: calls about one sandbox run one after the other, calls about different ones concurrently. The zero value
// is ready. It stores nothing for keys that are neither held nor waited for.
type Keyed[K comparable] struct {
	mu    sync.Mutex
	slots map[K]*slot
}

// slot is the lock of one key. Its channel has room for one token, which the holder of the lock has put there.
type slot struct {
	token chan struct{}
	users int
}

// Lock waits until the key is free, and takes it. unlock frees the key; call it once. Lock fails with ctx's error if ctx ends first.
// Waiters are served in order of arrival.
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
