package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Client asks the agent of this node.
type Client struct {
	// Socket is the path of the agent's socket; DefaultSocket when empty.
	Socket string
	// Origin is told to the agent.
	Origin Origin
}

// Do sends a request and returns what the agent answered: the result for ADD, nil for the others. Every error is
// an *Error. When nobody listens it has CodeTryAgainLater and ErrAgentAway in its chain; when the agent goes away
// before it has answered, or ctx ends, it has CodeTryAgainLater. How long to wait is up to ctx.
func (c *Client) Do(ctx context.Context, req *Request) (*types100.Result, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, Errorf(CodeInternal, "writing the request for the weft agent: %w", err)
	}
	socket := c.Socket
	if socket == "" {
		socket = DefaultSocket
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: dialer(socket)}
	defer transport.CloseIdleConnections()

	post, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://weft"+Endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, Errorf(CodeInternal, "writing the request for the weft agent: %w", err)
	}
	post.Header.Set("Content-Type", "application/json")
	c.Origin.set(post.Header)
	answer, err := transport.RoundTrip(post)
	if err != nil {
		return nil, transportError(socket, err)
	}
	defer answer.Body.Close() //nolint:errcheck // It has been read, or the error is told already.
	return readAnswer(socket, req, answer)
}

func dialer(socket string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("%w (%w)", ErrAgentAway, err)
		}
		return conn, err
	}
}

func transportError(socket string, err error) *Error {
	if errors.Is(err, ErrAgentAway) {
		return &Error{
			Code:    CodeTryAgainLater,
			Msg:     fmt.Sprintf("%v (socket %s): try again later", ErrAgentAway, socket),
			Details: err.Error(),
			cause:   err,
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return Errorf(CodeTryAgainLater, "the weft agent did not answer in time (socket %s): try again later: %w", socket, err)
	}
	if dial := new(net.OpError); errors.As(err, &dial) && dial.Op == "dial" {
		return Errorf(CodeTryAgainLater, "the weft agent cannot be reached (socket %s): try again later: %w", socket, err)
	}
	return Errorf(CodeTryAgainLater, "the weft agent went away before it answered (socket %s): try again later: %w", socket, err)
}

func readAnswer(socket string, req *Request, answer *http.Response) (*types100.Result, error) {
	body, err := io.ReadAll(io.LimitReader(answer.Body, MaxBody+1))
	if err != nil {
		return nil, transportError(socket, err)
	}
	if len(body) > MaxBody {
		return nil, Errorf(CodeProtocol, "the answer on socket %s is larger than %d bytes", socket, MaxBody)
	}
	var response Response
	if err := json.Unmarshal(body, &response); err != nil {
		return nil, Errorf(CodeProtocol, "the answer on socket %s (HTTP status %d) is not a weft agent's: %w",
			socket, answer.StatusCode, err)
	}
	switch {
	case response.Error != nil:
		return nil, response.Error
	case answer.StatusCode != http.StatusOK:
		return nil, Errorf(CodeProtocol, "the answer on socket %s has HTTP status %d and no error", socket, answer.StatusCode)
	case req.Command == CommandAdd && response.Result == nil:
		return nil, Errorf(CodeProtocol, "the answer on socket %s has no result", socket)
	}
	return response.Result, nil
}
