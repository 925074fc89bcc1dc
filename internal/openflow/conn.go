package openflow

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultKeepAlive is the default interval of echo requests to a silent switch. It must be longer than ovs-vswitchd's longest task: a
// commit of 50,000 flows takes it about two seconds.
const DefaultKeepAlive = 5 * time.Second

// silentIntervals is the number of intervals without any message after which the connection is closed.
const silentIntervals = 3

// Options are the options of a connection.
type Options struct {
	// KeepAlive is the interval of echo requests to a silent switch; 0: DefaultKeepAlive. After three intervals without any message from the
	// switch, the connection is closed with ErrUnresponsive.
	KeepAlive time.Duration
	// OnAsync gets the messages that no call waits for: *PortStatus, *PacketIn, []FlowUpdate, *GroupsChanged, *Error. It runs on the reading
	// goroutine and must not block. nil: they are dropped.
	OnAsync func(any)
}

// Conn is a connection to one bridge. Calls may run concurrently; none holds a lock while it reads or writes the
// socket. One goroutine reads, one writes.
type Conn struct {
	nc      net.Conn
	options Options
	closed  chan struct{}
	wake    chan struct{}
	heard   atomic.Bool

	mu      sync.Mutex
	err     error // the reason why the connection is closed
	nextXID uint32
	calls   []*call
	queue   [][]byte
}

// call is a running exchange: messages with consecutive XIDs, of which the call awaits the answer to one.
type call struct {
	first, count uint32
	// The rest is guarded by the connection's lock until done is closed.
	awaited uint32
	done    chan struct{}
	reply   message
	parts   [][]byte
	errs    []*Error
}

func (k *call) has(xid uint32) bool { return xid-k.first < k.count }

// Dial connects to a bridge. The address is the path of the bridge's socket (<run directory>/<bridge>.mgmt), or host:port. Dial returns
// once both sides have agreed on OpenFlow 1.5, and fails with ErrVersion if they do not.
func Dial(ctx context.Context, address string, options Options) (*Conn, error) {
	network := "tcp"
	if strings.Contains(address, "/") {
		network = "unix"
	}
	nc, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("connect to the switch: %w", err)
	}
	c, err := newConn(ctx, nc, options)
	if err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("OpenFlow hello with the switch at %s: %w", address, err)
	}
	return c, nil
}

func newConn(ctx context.Context, nc net.Conn, options Options) (*Conn, error) {
	if options.KeepAlive == 0 {
		options.KeepAlive = DefaultKeepAlive
	}
	c := &Conn{nc: nc, options: options, closed: make(chan struct{}), wake: make(chan struct{}, 1), nextXID: 2}
	// When the context ends, a deadline in the past unblocks the handshake.
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	r := bufio.NewReaderSize(nc, 64<<10)
	err := c.greet(r)
	if !stop() {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	go c.readLoop(r)
	go c.writeLoop()
	return c, nil
}

func (c *Conn) greet(r *bufio.Reader) error {
	if _, err := c.nc.Write(helloMessage().appendWire(nil)); err != nil {
		return fmt.Errorf("send hello: %w", err)
	}
	m, err := readMessage(r)
	switch {
	case err != nil:
		return err
	case m.kind == msgError:
		return fmt.Errorf("%w: %w", ErrVersion, decodeError(m))
	case m.kind != msgHello:
		return malformed("greeting")
	}
	return nil
}

// Close ends the connection. Waiting calls return ErrClosed.
func (c *Conn) Close() error {
	c.fail(ErrClosed)
	return nil
}

// Done returns a channel that is closed when the connection ends. Err then returns the reason.
func (c *Conn) Done() <-chan struct{} { return c.closed }

// Err returns why the connection is closed, or nil while it is open.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *Conn) fail(cause error) {
	c.mu.Lock()
	first := c.err == nil
	if first {
		c.err = cause
		if !errors.Is(cause, ErrClosed) {
			c.err = fmt.Errorf("%w: %w", ErrClosed, cause)
		}
	}
	c.mu.Unlock()
	if first {
		close(c.closed)
		_ = c.nc.Close()
	}
}

func (c *Conn) readLoop(r *bufio.Reader) {
	for {
		m, err := readMessage(r)
		if err != nil {
			c.fail(err)
			return
		}
		c.heard.Store(true)
		if m.kind == msgEchoRequest {
			c.enqueue(message{msgEchoReply, m.xid, m.body}.appendWire(nil))
			continue
		}
		// A forwarded request of another connection has the XID that it has there.
		if m.kind == msgRequestForward || !c.deliver(m) {
			c.async(m)
		}
	}
}

// deliver passes a message to the call that awaits it, if there is one.
func (c *Conn) deliver(m message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.calls {
		if !k.has(m.xid) {
			continue
		}
		if m.kind == msgError {
			k.errs = append(k.errs, decodeError(m))
		}
		if m.xid != k.awaited {
			return true
		}
		if m.kind == msgMultipartReply && len(m.body) >= headerLen {
			k.parts = append(k.parts, m.body[headerLen:])
			if m.body[3]&partMore != 0 {
				return true
			}
		}
		k.reply = m
		k.awaited = k.first - 1 // none: the call gets one answer only
		close(k.done)
		return true
	}
	return false
}

func (c *Conn) enqueue(b []byte) {
	c.mu.Lock()
	c.queue = append(c.queue, b)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// writeLoop writes queued messages and closes the connection when the switch is silent for too long.
func (c *Conn) writeLoop() {
	ticker := time.NewTicker(c.options.KeepAlive)
	defer ticker.Stop()
	silent := 0
	for {
		select {
		case <-c.closed:
			return
		case <-ticker.C:
			if c.heard.Swap(false) {
				silent = 0
				continue
			}
			if silent++; silent > silentIntervals {
				c.fail(ErrUnresponsive)
				return
			}
			c.enqueue(message{kind: msgEchoRequest}.appendWire(nil))
		case <-c.wake:
		}
		if err := c.flush(); err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *Conn) flush() error {
	c.mu.Lock()
	queue := net.Buffers(c.queue)
	c.queue = nil
	c.mu.Unlock()
	// A switch that does not read must not block this goroutine for ever.
	_ = c.nc.SetWriteDeadline(time.Now().Add((silentIntervals + 1) * c.options.KeepAlive))
	if _, err := queue.WriteTo(c.nc); err != nil {
		return fmt.Errorf("write to the switch: %w", err)
	}
	return nil
}

// begin reserves XIDs for count messages and registers the call for the switch's answers.
func (c *Conn) begin(count int) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := uint32(count) //nolint:gosec // far below
	if c.nextXID+n < c.nextXID {
		c.nextXID = 2 // the switch uses 0 for messages that answer no request; 1 was the hello's
	}
	k := &call{first: c.nextXID, count: n}
	c.nextXID += n
	c.calls = append(c.calls, k)
	return k
}

// expect sets the message whose answer the next wait is for. Call it before sending.
func (c *Conn) expect(k *call, xid uint32) {
	c.mu.Lock()
	k.awaited, k.done = xid, make(chan struct{})
	c.mu.Unlock()
}

func (c *Conn) wait(ctx context.Context, k *call) error {
	select {
	case <-k.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the switch: %w", context.Cause(ctx))
	case <-c.closed:
		return c.Err()
	}
}

func (c *Conn) end(k *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.calls {
		if c.calls[i] == k {
			c.calls = append(c.calls[:i:i], c.calls[i+1:]...)
			return
		}
	}
}

// refused returns the errors that the switch has sent for the call so far.
func (c *Conn) refused(k *call) []*Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return k.errs
}

// exchange sends messages and waits for the answer to the last one. what names the request in errors.
func (c *Conn) exchange(ctx context.Context, what string, messages ...message) (*call, error) {
	k := c.begin(len(messages))
	defer c.end(k)
	last := k.first + k.count - 1
	c.expect(k, last)
	var b []byte
	for i, m := range messages {
		if !m.fits() {
			return nil, fmt.Errorf("%s: %w", what, errTooLong)
		}
		m.xid = k.first + uint32(i) //nolint:gosec // a handful
		b = m.appendWire(b)
	}
	c.enqueue(b)
	if err := c.wait(ctx, k); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if errs := c.refused(k); len(errs) > 0 {
		errs[0].Of = what
		return nil, errs[0]
	}
	return k, nil
}

var errTooLong = errors.New("longer than an OpenFlow message can be (64 KiB)")
