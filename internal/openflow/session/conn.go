package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// DefaultKeepAlive is the default interval of echo requests to a silent switch. It must be longer than ovs-vswitchd's longest task: a
// commit of 50,000 flows takes it about two seconds.
const DefaultKeepAlive = 5 * time.Second

var (
	// ErrClosed reports that the connection is closed, or was closed during the call.
	ErrClosed = errors.New("the OpenFlow connection is closed")
	// ErrUnresponsive says that the switch did not answer echo requests.
	ErrUnresponsive = errors.New("the switch does not answer")
)

// Options are the options of a connection.
type Options struct {
	// KeepAlive is the interval of echo requests to a silent switch; 0: DefaultKeepAlive. After three intervals without any message from the
	// switch, the connection is closed with ErrUnresponsive.
	KeepAlive time.Duration
	// OnAsync gets the messages that no call waits for: what openflow.DecodeAsync returns. It runs on the reading
	// goroutine and must not block. nil: they are dropped.
	OnAsync func(any)
}

// Conn is a connection to one bridge. Calls may run concurrently.
type Conn struct{ channel *channel }

// Dial connects to a bridge. The address is the path of the bridge's socket (<run directory>/<bridge>.mgmt), or host:port. Dial returns
// once both sides have agreed on OpenFlow 1.5, and fails with openflow.ErrVersion if they do not.
func Dial(ctx context.Context, address string, options Options) (*Conn, error) {
	network := "tcp"
	if strings.Contains(address, "/") {
		network = "unix"
	}
	nc, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("connect to the switch: %w", err)
	}
	c, err := open(ctx, nc, options)
	if err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("OpenFlow hello with the switch at %s: %w", address, err)
	}
	return &Conn{c}, nil
}

// Close ends the connection. Waiting calls return ErrClosed.
func (c *Conn) Close() error {
	c.channel.fail(ErrClosed)
	return nil
}

// Done returns a channel that is closed when the connection ends. Err then returns the reason.
func (c *Conn) Done() <-chan struct{} { return c.channel.closed }

// Err returns why the connection is closed, or nil while it is open.
func (c *Conn) Err() error { return c.channel.reason() }
