package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Client sends requests to the agent of this node.
type Client struct {
	// Socket is the path of the agent's socket; DefaultSocket if empty.
	Socket string
	// Origin is sent to the agent.
	Origin Origin
}

// Do sends a request and returns the agent's answer: the result for ADD, nil for other commands. Every error is an *Error. If no agent
// listens, it has CodeTryAgainLater and wraps ErrAgentAway. If the agent ends before it answers, or ctx ends, it has CodeTryAgainLater.
// ctx alone limits the wait.
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

// maxAnswer is the maximum size of an answer with its headers, in bytes.
const maxAnswer = MaxBody + 16<<10

// exchange sends a request and returns the answer. The request is HTTP/1.0, so that the answer is not chunked. It does not use the client of
// net/http, whose initialisation would take longer than the rest of the plugin's start.
func (c *Client) exchange(ctx context.Context, socket string, body []byte) ([]byte, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w (%w)", ErrAgentAway, err)
	}
	if err != nil {
		return nil, err
	}
	defer conn.Close()                                                               //nolint:errcheck // It has been read, or the error is returned already.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // ends blocked calls
	defer stop()

	var request bytes.Buffer
	fmt.Fprintf(&request, "POST %s HTTP/1.0\r\nHost: weft\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", Endpoint, len(body))
	c.Origin.set(func(name, value string) { fmt.Fprintf(&request, "%s: %s\r\n", name, value) })
	request.WriteString("\r\n")
	request.Write(body)
	_, sendErr := conn.Write(request.Bytes()) // the server may refuse a request before it has read all of it, and still answers
	answer, err := receive(conn)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case len(answer) > 0:
		return answer, nil
	default:
		return nil, errors.Join(sendErr, err, io.ErrUnexpectedEOF)
	}
}

// receive reads an answer: as much as its headers say, or without a length until the agent closes the connection. The agent closes it only
// after its own work for the answer.
func receive(conn io.Reader) ([]byte, error) {
	const usual = 4 << 10
	answer := make([]byte, 0, usual)
	for len(answer) <= maxAnswer {
		answer = slices.Grow(answer, usual)
		count, err := conn.Read(answer[len(answer):cap(answer)])
		answer = answer[:len(answer)+count]
		if errors.Is(err, io.EOF) {
			return answer, nil
		}
		if err != nil {
			return answer, err
		}
		head, body, _ := bytes.Cut(answer, []byte(headEnd))
		if length := lengthIn(string(head)); length > 0 && len(body) >= length {
			return answer, nil
		}
	}
	return answer, nil
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

// readAnswer parses an HTTP answer: the status, headers up to an empty line, and the body.
func readAnswer(socket string, req *Request, answer []byte) (*types100.Result, error) {
	head, body, complete := bytes.Cut(answer, []byte(headEnd))
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

// headEnd ends the headers of an answer (RFC 9112, section 2.1).
const headEnd = "\r\n\r\n"

// lengthIn returns the length of the body according to the headers; 0 if they have none.
func lengthIn(headers string) int {
	length, err := strconv.Atoi(headerIn(headers, "Content-Length"))
	if err != nil {
		return 0
	}
	return length
}

// statusOK is the HTTP status of success (RFC 9110, 15.3.1).
const statusOK = 200
