package session

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/wire"
)

// channel is an OpenFlow channel (OpenFlow 1.5.1, 6.3): it passes messages to one bridge, and the bridge's answers to the calls that wait for
// them. Calls may run concurrently; none holds a lock while it reads or writes the socket. One goroutine reads, one writes.
type channel struct {
	nc      net.Conn
	options Options
	closed  chan struct{}
	wake    chan struct{}
	heard   atomic.Bool

	mu      sync.Mutex
	err     error // the reason why the channel is closed
	nextXID uint32
	calls   []*call
	queue   [][]byte
}

// silentIntervals is the number of intervals without any message after which the channel is closed.
const silentIntervals = 3

// call is a running exchange: messages with consecutive XIDs, of which the call awaits the answer to one.
type call struct {
	first, count uint32
	// The rest is guarded by the connection's lock until done is closed.
	awaited uint32
	done    chan struct{}
	reply   openflow.Message
	parts   [][]byte
	errs    []*openflow.Error
}

func (k *call) has(xid uint32) bool { return xid-k.first < k.count }

// open exchanges hello messages with the bridge, and starts the channel.
func open(ctx context.Context, nc net.Conn, options Options) (*channel, error) {
	if options.KeepAlive == 0 {
		options.KeepAlive = DefaultKeepAlive
	}
	c := &channel{nc: nc, options: options, closed: make(chan struct{}), wake: make(chan struct{}, 1), nextXID: 2}
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

func (c *channel) greet(r *bufio.Reader) error {
	if _, err := c.nc.Write(openflow.Hello().AppendWire(nil)); err != nil {
		return fmt.Errorf("send hello: %w", err)
	}
	m, err := openflow.ReadMessage(r)
	switch {
	case err != nil:
		return err
	case m.Kind == openflow.MsgError:
		return fmt.Errorf("%w: %w", openflow.ErrVersion, openflow.DecodeError(m))
	case m.Kind != openflow.MsgHello:
		return wire.Malformed("greeting")
	}
	return nil
}

func (c *channel) fail(cause error) {
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

func (c *channel) readLoop(r *bufio.Reader) {
	for {
		m, err := openflow.ReadMessage(r)
		if err != nil {
			c.fail(err)
			return
		}
		c.heard.Store(true)
		if m.Kind == openflow.MsgEchoRequest {
			c.enqueue(openflow.Message{Kind: openflow.MsgEchoReply, XID: m.XID, Body: m.Body}.AppendWire(nil))
			continue
		}
		// A forwarded request of another connection has the XID that it has there.
		if m.Kind == openflow.MsgRequestForward || !c.deliver(m) {
			c.async(m)
		}
	}
}

// deliver passes a message to the call that awaits it, if there is one.
func (c *channel) deliver(m openflow.Message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.calls {
		if !k.has(m.XID) {
			continue
		}
		if m.Kind == openflow.MsgError {
			k.errs = append(k.errs, openflow.DecodeError(m))
		}
		if m.XID != k.awaited {
			return true
		}
		if m.Kind == openflow.MsgMultipartReply && len(m.Body) >= openflow.HeaderLen {
			k.parts = append(k.parts, m.Body[openflow.HeaderLen:])
			if m.Body[3]&openflow.PartMore != 0 {
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

func (c *channel) enqueue(b []byte) {
	c.mu.Lock()
	c.queue = append(c.queue, b)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// writeLoop writes queued messages and closes the connection when the switch is silent for too long.
func (c *channel) writeLoop() {
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
			c.enqueue(openflow.Message{Kind: openflow.MsgEchoRequest}.AppendWire(nil))
		case <-c.wake:
		}
		if err := c.flush(); err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *channel) flush() error {
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
func (c *channel) begin(count int) *call {
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
func (c *channel) expect(k *call, xid uint32) {
	c.mu.Lock()
	k.awaited, k.done = xid, make(chan struct{})
	c.mu.Unlock()
}

func (c *channel) wait(ctx context.Context, k *call) error {
	select {
	case <-k.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the switch: %w", context.Cause(ctx))
	case <-c.closed:
		return c.reason()
	}
}

func (c *channel) end(k *call) {
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
func (c *channel) refused(k *call) []*openflow.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return k.errs
}

// exchange sends messages and waits for the answer to the last one. what names the request in errors.
func (c *channel) exchange(ctx context.Context, what string, messages ...openflow.Message) (*call, error) {
	k := c.begin(len(messages))
	defer c.end(k)
	last := k.first + k.count - 1
	c.expect(k, last)
	var b []byte
	for i, m := range messages {
		if !m.Fits() {
			return nil, fmt.Errorf("%s: %w", what, openflow.ErrTooLong)
		}
		m.XID = k.first + uint32(i) //nolint:gosec // a handful
		b = m.AppendWire(b)
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

// reason returns why the channel is closed, or nil while it is open.
func (c *channel) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// async passes a message that no call waits for to OnAsync.
func (c *channel) async(m openflow.Message) {
	if c.options.OnAsync == nil {
		return
	}
	if event := openflow.DecodeAsync(m); event != nil {
		c.options.OnAsync(event)
	}
}
