package link

import (
	"github.com/vishvananda/netlink/nl"
)

// Requests is an rtnetlink socket for engines of other packages. It sends many requests in one datagram. Its methods may be called
// concurrently.
type Requests struct{ conn *conn }

// DialRequests opens a socket in the network namespace of the calling thread. The caller must close it.
func DialRequests() (*Requests, error) {
	conn, err := dial()
	if err != nil {
		return nil, err
	}
	return &Requests{conn}, nil
}

// Do sends the requests and returns the error of each, nil for those that succeeded. The kernel processes them in order, also after one
// has failed. The second error is about the socket: then it is not known which requests have succeeded.
func (r *Requests) Do(requests ...*nl.NetlinkRequest) ([]error, error) {
	answers, err := r.conn.do(requests...)
	if err != nil {
		return nil, err
	}
	errs := make([]error, len(answers))
	for i := range answers {
		errs[i] = answers[i].err
	}
	return errs, nil
}

// Port returns the socket's netlink port, which the kernel's events about its changes contain.
func (r *Requests) Port() uint32 { return r.conn.port }

// Close closes the socket.
func (r *Requests) Close() { r.conn.close() }
