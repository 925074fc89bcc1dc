package cni

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"
)

// HeaderPrint has, in a request, the version of the specification in which the agent may print the result of an ADD; in an answer, it says
// that the body is such a result, as the plugin prints it. An agent that does not know it answers with a Response.
const HeaderPrint = "Weft-Print"

// Answer is the agent's answer to a request.
type Answer struct {
	socket       string
	headers      string
	answer, body []byte
}

// Printed returns the result as the agent has printed it; ok is false if the answer is a Response.
func (a *Answer) Printed() (text []byte, ok bool) {
	first, headers, _ := strings.Cut(a.headers, "\r\n")
	_, status, _ := strings.Cut(first, " ")
	if !strings.HasPrefix(status, "200 ") || headerIn(headers, HeaderPrint) == "" || lengthIn(headers) != len(a.body) {
		return nil, false
	}
	return a.body, true
}

// Result returns the result in a Response, or its error, as Client.Do.
func (a *Answer) Result(req *Request) (*types100.Result, error) {
	return readAnswer(a.socket, req, a.answer)
}

// Send sends a request, given as JSON, with system calls alone: package net starts threads and a poller, which takes a process longer than
// the whole exchange. It asks for the result in a version. It returns ErrAgentAway, and has sent nothing, if the agent cannot be
// reached; every other error is an *Error, as of Do.
func (c *Client) Send(body []byte, version string, timeout time.Duration) (*Answer, error) {
	agent, err := connect(c.Socket, timeout)
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrAgentAway, err)
	}
	defer agent.close()
	request := make([]byte, 0, len(body)+512)
	header := func(name, value string) {
		request = append(append(append(append(request, name...), ": "...), value...), "\r\n"...)
	}
	request = append(append(append(request, "POST "...), Endpoint...), " HTTP/1.0\r\n"...)
	header("Host", "weft")
	header("Content-Type", "application/json")
	header("Content-Length", strconv.Itoa(len(body)))
	header(HeaderPrint, version)
	c.Origin.set(header)
	request = append(append(request, "\r\n"...), body...)
	sendErr := agent.send(request) // the server may refuse a request before it has read all of it, and still answers
	answer, err := receive(agent)
	if len(answer) == 0 {
		return nil, transportError(c.Socket, errors.Join(sendErr, err, io.ErrUnexpectedEOF))
	}
	head, rest, _ := bytes.Cut(answer, []byte(headEnd))
	return &Answer{socket: c.Socket, headers: string(head), answer: answer, body: rest}, nil
}

// headerIn returns the value of a header; empty if there is none.
func headerIn(headers, name string) string {
	for line := range strings.SplitSeq(headers, "\r\n") {
		if have, value, _ := strings.Cut(line, ":"); strings.EqualFold(have, name) {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// blocking is a connected unix socket whose calls block, each at most until the deadline that was set when it was connected.
type blocking struct {
	fd       int
	deadline time.Time
}

// connect connects to the socket at a path.
func connect(path string, timeout time.Duration) (*blocking, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	b := &blocking{fd: fd, deadline: time.Now().Add(timeout)}
	limit := unix.NsecToTimeval(timeout.Nanoseconds())
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		err = errors.Join(err, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &limit))
	}
	if err == nil {
		_, err = b.again(func() (int, error) { return 0, unix.Connect(fd, &unix.SockaddrUnix{Name: path}) })
	}
	if err != nil {
		b.close()
		return nil, os.NewSyscallError("connect", err)
	}
	return b, nil
}

func (b *blocking) close() { _ = unix.Close(b.fd) }

// again repeats a call that a signal interrupts: with a timeout, the kernel does not (signal(7)).
func (b *blocking) again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, unix.EAGAIN), !time.Now().Before(b.deadline):
			return 0, context.DeadlineExceeded
		case !errors.Is(err, unix.EINTR):
			return 0, err
		}
	}
}

// send sends all of data.
func (b *blocking) send(data []byte) error {
	for len(data) > 0 {
		n, err := b.again(func() (int, error) { return unix.Write(b.fd, data) })
		if err != nil {
			return os.NewSyscallError("write", err)
		}
		data = data[n:]
	}
	return nil
}

// Read implements io.Reader.
func (b *blocking) Read(data []byte) (int, error) {
	n, err := b.again(func() (int, error) { return unix.Read(b.fd, data) })
	switch {
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
