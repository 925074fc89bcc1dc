package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

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
	answer, err := c.exchange(ctx, socket, body)
	if err != nil {
		return nil, transportError(socket, err)
	}
	return readAnswer(socket, req, answer)
}

// maxAnswer bounds an answer with its headers, in bytes.
const maxAnswer = MaxBody + 16<<10

// exchange sends a request and returns all that comes back, until the agent closes the connection. The request is of HTTP/1.0,
// so that what comes back is as it is. The client of net/http has the plugin start for longer than the rest of it takes.
func (c *Client) exchange(ctx context.Context, socket string, body []byte) ([]byte, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w (%w)", ErrAgentAway, err)
	}
	if err != nil {
		return nil, err
	}
	defer conn.Close()                                                               //nolint:errcheck // It has been read, or the error is told already.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // ends what waits
	defer stop()

	var request bytes.Buffer
	fmt.Fprintf(&request, "POST %s HTTP/1.0\r\nHost: weft\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", Endpoint, len(body))
	c.Origin.set(func(name, value string) { fmt.Fprintf(&request, "%s: %s\r\n", name, value) })
	request.WriteString("\r\n")
	request.Write(body)
	_, sendErr := conn.Write(request.Bytes()) // who is refused may not be heard to the end, and is told all the same
	answer, err := io.ReadAll(io.LimitReader(conn, maxAnswer+1))
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case len(answer) > 0:
		return answer, nil
	default:
		return nil, errors.Join(sendErr, err, io.ErrUnexpectedEOF)
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

// readAnswer reads an answer of HTTP: the status, headers up to an empty line, and the body.
func readAnswer(socket string, req *Request, answer []byte) (*types100.Result, error) {
	head, body, complete := bytes.Cut(answer, []byte("\r\n\r\n"))
	first, headers, _ := strings.Cut(string(head), "\r\n")
	protocol, rest, _ := strings.Cut(first, " ")
	code, _, _ := strings.Cut(rest, " ")
	status, err := strconv.Atoi(code)
	if !complete || err != nil || !strings.HasPrefix(protocol, "HTTP/1.") {
		return nil, transportError(socket, fmt.Errorf("not an HTTP response: %.64q", first))
	}
	if want := lengthIn(headers); len(body) < want {
		return nil, transportError(socket, fmt.Errorf("%d of %d bytes: %w", len(body), want, io.ErrUnexpectedEOF))
	}
	if len(body) > MaxBody {
		return nil, Errorf(CodeProtocol, "the answer on socket %s is larger than %d bytes", socket, MaxBody)
	}
	var response Response
	if err := json.Unmarshal(body, &response); err != nil {
		return nil, Errorf(CodeProtocol, "the response on socket %s (HTTP status %d) is not from a weft agent: %w", socket, status, err)
	}
	switch {
	case response.Error != nil:
		return nil, response.Error
	case status != statusOK:
		return nil, Errorf(CodeProtocol, "the answer on socket %s has HTTP status %d and no error", socket, status)
	case req.Command == CommandAdd && response.Result == nil:
		return nil, Errorf(CodeProtocol, "the answer on socket %s has no result", socket)
	}
	return response.Result, nil
}

// lengthIn returns how long the headers say that the body is; 0 when they do not say.
func lengthIn(headers string) int {
	for line := range strings.SplitSeq(headers, "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		if strings.EqualFold(name, "Content-Length") {
			length, err := strconv.Atoi(strings.TrimSpace(value))
			if err == nil {
				return length
			}
		}
	}
	return 0
}

// statusOK is HTTP's status of what was done (RFC 9110, 15.3.1).
const statusOK = 200
