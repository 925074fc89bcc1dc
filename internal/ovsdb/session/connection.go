package session

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
)

// queued bounds the messages that wait to be written.
const queued = 64

// largeMessage is the size, in bytes, above which the memory that a message was read into is not used for the next messages: a copy of a
// whole database has several megabytes, and a json.Decoder keeps them.
const largeMessage = 1 << 16

// connection is a JSON-RPC connection to an OVSDB server (RFC 7047, 4). It handles messages in their order: notify returns before the next
// answer is delivered.
type connection struct {
	conn   net.Conn
	notify func(method string, params json.RawMessage) error
	out    chan []byte
	group  sync.WaitGroup
	// ended is closed when the connection has ended; err is then set.
	ended chan struct{}
	err   error

	mu    sync.Mutex
	next  uint64
	calls map[uint64]call
}

// call is a request without an answer yet.
type call struct {
	// answered is called with the result before the next message is handled; nil: not called.
	answered func(result json.RawMessage) error
	done     chan answer
}

type answer struct {
	result json.RawMessage
	err    error
}

// message is a request, a notification (without an ID) or an answer (without a method).
type message struct {
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	ID     json.RawMessage `json:"id"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
}

// connect connects to an endpoint.
func connect(ctx context.Context, endpoint string, config *tls.Config) (net.Conn, error) {
	method, where, _ := strings.Cut(endpoint, ":")
	if method == ssl {
		return (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", where) //nolint:wrapcheck // the caller says which server
	}
	return (&net.Dialer{}).DialContext(ctx, method, where) //nolint:wrapcheck // the caller says which server
}

// newConnection starts the protocol on conn. notify is called for each notification; if it fails, the connection ends. The caller must
// close the connection.
func newConnection(conn net.Conn, notify func(string, json.RawMessage) error) *connection {
	c := &connection{
		conn: conn, notify: notify, out: make(chan []byte, queued), ended: make(chan struct{}), calls: map[uint64]call{},
	}
	c.group.Go(func() { c.end(c.receive()) })
	c.group.Go(c.send)
	return c
}

// close ends the connection and returns when its goroutines have ended.
func (c *connection) close() {
	_ = c.conn.Close()
	c.group.Wait()
}

// end fails all calls. Only receive's goroutine calls it.
func (c *connection) end(err error) {
	_ = c.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	c.calls = nil
	close(c.ended)
}

// call sends a request and waits for its answer. It returns an error that wraps ErrLost when the connection has ended; whether the server
// handled the request is then unknown.
func (c *connection) call(ctx context.Context, method string, params any, answered func(json.RawMessage) error) (json.RawMessage, error) {
	encoded, err := json.Marshal(params)
	if err != nil {
		return nil, fmt.Errorf("encode the parameters of %s: %w", method, err)
	}
	done := make(chan answer, 1)
	id, ok := c.register(call{answered: answered, done: done})
	if !ok {
		return nil, c.lost()
	}
	defer c.forget(id)
	request, err := json.Marshal(message{Method: method, Params: encoded, ID: strconv.AppendUint(nil, id, 10)})
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", method, err)
	}
	select {
	case c.out <- request:
	case <-c.ended:
		return nil, c.lost()
	case <-ctx.Done():
		return nil, ctx.Err() //nolint:wrapcheck // the caller says what it waited for
	}
	select {
	case got := <-done:
		return got.result, got.err
	case <-ctx.Done():
		return nil, ctx.Err() //nolint:wrapcheck // the caller says what it waited for
	case <-c.ended:
	}
	select {
	case got := <-done: // it came before the end
		return got.result, got.err
	default:
		return nil, c.lost()
	}
}

// lost returns why the connection has ended.
func (c *connection) lost() error {
	<-c.ended
	return fmt.Errorf("%w: %w", ErrLost, c.err)
}

// register returns the ID of a call, and false if the connection has ended.
func (c *connection) register(made call) (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		return 0, false
	}
	c.next++
	c.calls[c.next] = made
	return c.next, true
}

func (c *connection) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, id)
}

// send writes what is queued until the connection ends.
func (c *connection) send() {
	for {
		select {
		case <-c.ended:
			return
		case out := <-c.out:
			if _, err := c.conn.Write(out); err != nil {
				_ = c.conn.Close() // receive fails then
				return
			}
		}
	}
}

// receive handles messages until the connection ends.
func (c *connection) receive() error {
	var rest io.Reader = c.conn // what the decoder reads
	decoder := json.NewDecoder(rest)
	for {
		var m message
		if err := decoder.Decode(&m); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if len(m.Params)+len(m.Result) > largeMessage {
			// Not from c.conn: the decoder may not have read all that the one before it has buffered.
			rest = io.MultiReader(decoder.Buffered(), rest)
			decoder = json.NewDecoder(rest)
		}
		if m.Method == "" {
			if err := c.deliver(m); err != nil {
				return err
			}
			continue
		}
		if m.Method != "echo" {
			if err := c.notify(m.Method, m.Params); err != nil {
				return err
			}
		}
		if err := c.reply(m); err != nil {
			return err
		}
	}
}

// reply answers a request. A notification has no ID and gets no answer. The answer is queued without waiting: a server that sends many
// requests and reads no answers would stop the connection otherwise.
func (c *connection) reply(m message) error {
	if len(m.ID) == 0 || string(m.ID) == "null" {
		return nil
	}
	result := json.RawMessage("[]")
	if m.Method == "echo" && len(m.Params) > 0 {
		result = m.Params
	}
	out, err := json.Marshal(message{ID: m.ID, Result: result, Error: json.RawMessage("null")})
	if err != nil {
		return fmt.Errorf("answer %.64q: %w", m.Method, err)
	}
	select {
	case c.out <- out:
		return nil
	default:
		return errors.New("the server reads no answers")
	}
}

// deliver hands an answer to its call. An answer without a call is for a caller that has given up.
func (c *connection) deliver(m message) error {
	id, err := strconv.ParseUint(string(m.ID), 10, 64)
	if err != nil {
		return fmt.Errorf("answer to an unknown request %.64q", m.ID)
	}
	c.mu.Lock()
	made, ok := c.calls[id]
	c.mu.Unlock()
	if !ok {
		return nil
	}
	got := answer{result: m.Result}
	if len(m.Error) > 0 && string(m.Error) != "null" {
		got = answer{err: fmt.Errorf("the server refuses: %.512s", m.Error)}
	} else if made.answered != nil {
		got.err = made.answered(m.Result)
	}
	made.done <- got
	return nil
}
