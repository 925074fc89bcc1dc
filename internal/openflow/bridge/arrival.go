package bridge

import (
	"sync"
)

// arrivals notifies callers that wait for ports.
type arrivals struct {
	mu      *sync.Mutex
	waiting map[arrival]chan struct{}
}

// arrival is a port that a caller waits for.
type arrival struct {
	name   string
	number uint32
}

func newArrivals() arrivals {
	return arrivals{mu: &sync.Mutex{}, waiting: map[arrival]chan struct{}{}}
}

func (a arrivals) await(name string, number uint32) (added <-chan struct{}, stop func()) {
	port, arrived := arrival{name, number}, make(chan struct{})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting[port] = arrived
	return arrived, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.waiting[port] == arrived {
			delete(a.waiting, port)
		}
	}
}

func (a arrivals) announce(name string, number uint32) {
	port := arrival{name, number}
	a.mu.Lock()
	defer a.mu.Unlock()
	if arrived, awaited := a.waiting[port]; awaited {
		close(arrived)
		delete(a.waiting, port)
	}
}

// Added returns a channel that is closed when the switch reports that it has added the port with that name and number. From then on the
// switch keeps packets from the port for the pipeline. The report comes before the switch updates its other ports, and therefore long
// before its database shows the port. Added does not report a port that exists already, or one that is added while there is no
// connection: a caller watches the database as well. If two callers wait for the same port, only the later one is notified. stop ends the
// waiting.
func (e *Engine) Added(name string, number uint32) (added <-chan struct{}, stop func()) {
	return e.ports.await(name, number)
}
