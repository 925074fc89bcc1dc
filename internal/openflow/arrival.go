package openflow

import "sync"

// arrivals tells those who wait for ports that they have come.
type arrivals struct {
	mu      *sync.Mutex
	waiting map[arrival]chan struct{}
}

// arrival is a port that somebody waits for.
type arrival struct {
	name   string
	number uint32
}

func newArrivals() arrivals {
	return arrivals{mu: &sync.Mutex{}, waiting: map[arrival]chan struct{}{}}
}

func (a arrivals) await(name string, number uint32) (added <-chan struct{}, stop func()) {
	port, told := arrival{name, number}, make(chan struct{})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting[port] = told
	return told, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.waiting[port] == told {
			delete(a.waiting, port)
		}
	}
}

func (a arrivals) tell(name string, number uint32) {
	port := arrival{name, number}
	a.mu.Lock()
	defer a.mu.Unlock()
	if told, awaited := a.waiting[port]; awaited {
		close(told)
		delete(a.waiting, port)
	}
}

// Added returns a channel that is closed when the switch says that it has added the port of that name under that number:
// from then on what comes in by the port is kept for the pipeline. The switch says so before it goes over its other ports,
// and so long before its database tells. A port that is there already is not told of, nor one that is added while there is
// no connection: who waits watches the database as well. Of two who wait for the same port the later one is told. stop ends
// the waiting.
func (e *Engine) Added(name string, number uint32) (added <-chan struct{}, stop func()) {
	return e.ports.await(name, number)
}
