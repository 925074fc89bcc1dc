package rtnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
)

const (
	// ReceiveSize holds any answer to the requests made here; a link with all its attributes has about 2 kB.
	ReceiveSize = 64 << 10
	// BatchMax limits the requests per datagram, so that their answers fit the socket's receive buffer (212,992 bytes by default, accounted
	// with about 800 bytes per error).
	BatchMax = 100
	// receiveTimeout is the timeout of an answer in seconds. The kernel answers within the sending call, so only a fault ever waits.
	receiveTimeout = 10
)

// Conn is an rtnetlink socket that sends several requests in one datagram: one round trip for all of them. The kernel processes them in
// order, also after one has failed. It reports each error, but acknowledges only the last request: each acknowledgement costs a read.
type Conn struct {
	mutex sync.Mutex
	// Turn serializes the datagrams of several sockets.
	Turn *Turn
	fd   int
	// Port is the socket's address; it is in the kernel's events about this socket's changes.
	Port uint32
	seq  uint32
	buf  []byte
}

// Dial opens a socket in the calling thread's namespace.
func Dial() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	// Both options are optional and make errors readable and short; kernels before 4.12 do not have them.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: receiveTimeout}),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	c := &Conn{fd: fd, buf: make([]byte, ReceiveSize)}
	if own, err := unix.Getsockname(fd); err == nil {
		if address, ok := own.(*unix.SockaddrNetlink); ok {
			c.Port = address.Pid
		}
	}
	return c, nil
}

// Close closes the socket.
func (c *Conn) Close() { unix.Close(c.fd) }

// Turn serializes changes of links. The kernel has one lock for all of them (RTNL). A write of disable_ipv6 while the lock is held does not
// sleep: the write returns and is restarted, again and again (rtnl_trylock and restart_syscall in the kernel's net/ipv6/addrconf.c).
// Deletions hold the lock for about 20 ms, during which a concurrent ADD would keep a processor busy. Within one process, waiting here
// costs nothing that waiting in the kernel would not.
type Turn struct{ mutex sync.Mutex }

// Do runs f in turn. A nil turn does not serialize.
func (t *Turn) Do(f func() error) error {
	if t == nil {
		return f()
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return f()
}

// Answer is the answer to one request.
type Answer struct {
	Err  error
	Link netlink.Link // of a request for a link
	Raw  []byte       // its attributes
}

// Do sends the requests and returns their answers in order. The error is about the socket, not about a request.
func (c *Conn) Do(requests ...*nl.NetlinkRequest) ([]Answer, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	answers := make([]Answer, 0, len(requests))
	for len(requests) > 0 {
		count := min(len(requests), BatchMax)
		err := c.Turn.Do(func() error {
			part, err := c.doPart(requests[:count])
			answers = append(answers, part...)
			return err
		})
		if err != nil {
			return nil, err
		}
		requests = requests[count:]
	}
	return answers, nil
}

func (c *Conn) doPart(requests []*nl.NetlinkRequest) ([]Answer, error) {
	first := c.seq + 1
	var datagram []byte
	for i, request := range requests {
		c.seq++
		request.Seq = c.seq
		if i == len(requests)-1 {
			request.Flags |= unix.NLM_F_ACK
		}
		datagram = append(datagram, request.Serialize()...)
		for len(datagram)%unix.NLMSG_ALIGNTO != 0 {
			datagram = append(datagram, 0)
		}
	}
	if err := unix.Sendto(c.fd, datagram, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("sending to netlink: %w", err)
	}
	answers := make([]Answer, len(requests))
	for done := len(requests) == 0; !done; {
		var err error
		if done, err = c.receive(first, answers); err != nil {
			return nil, err
		}
	}
	return answers, nil
}

// receive reads one datagram and stores its messages in answers. It reports whether it had the result of the last request.
func (c *Conn) receive(first uint32, answers []Answer) (last bool, err error) {
	size, from, err := unix.Recvfrom(c.fd, c.buf, 0)
	if errors.Is(err, unix.EINTR) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("receiving from netlink: %w", err)
	}
	if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
		return false, nil // only the kernel answers
	}
	messages, err := syscall.ParseNetlinkMessage(c.buf[:size])
	if err != nil {
		return false, fmt.Errorf("receiving from netlink: %w", err)
	}
	for _, message := range messages {
		index := int(int32(message.Header.Seq - first))
		if index < 0 || index >= len(answers) {
			continue // the late answer to an abandoned request
		}
		switch message.Header.Type {
		case unix.NLMSG_ERROR:
			last = last || index == len(answers)-1
			answers[index].Err = acknowledgement(message)
		case unix.RTM_NEWLINK:
			header := unix.NlMsghdr(message.Header)
			answers[index].Link, err = netlink.LinkDeserialize(&header, message.Data)
			if err != nil {
				return last, fmt.Errorf("reading a link from netlink: %w", err)
			}
			answers[index].Raw = slices.Clone(message.Data[unix.SizeofIfInfomsg:])
		}
	}
	return last, nil
}

// acknowledgement turns an NLMSG_ERROR into an error, with the kernel's message if it sent one.
func acknowledgement(message syscall.NetlinkMessage) error {
	if len(message.Data) < 4 {
		return unix.EBADMSG
	}
	code := int32(binary.NativeEndian.Uint32(message.Data))
	if code == 0 {
		return nil
	}
	err := error(syscall.Errno(-code))
	// With NETLINK_CAP_ACK only the request's header is echoed before the attributes.
	const attributes = 4 + unix.NLMSG_HDRLEN
	if message.Header.Flags&unix.NLM_F_ACK_TLVS == 0 || len(message.Data) <= attributes {
		return err
	}
	parsed, parseErr := nl.ParseRouteAttr(message.Data[attributes:])
	if parseErr != nil {
		return err
	}
	for _, attr := range parsed {
		if attr.Attr.Type&^unix.NLA_F_NESTED == nl.NLMSGERR_ATTR_MSG {
			return fmt.Errorf("%w: %s", err, unix.ByteSliceToString(attr.Value))
		}
	}
	return err
}

// All returns the first error of the answers, with the purpose of its request.
func All(answers []Answer, what []string) error {
	for i, a := range answers {
		if a.Err != nil {
			return fmt.Errorf("%s: %w", what[i], a.Err)
		}
	}
	return nil
}

// UnlessGone ignores that a link was already removed, for example with the pod's namespace.
func UnlessGone(err error) error {
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// Device returns the requested link, or ErrNoDevice.
func (a *Answer) Device(name string) (netlink.Link, error) {
	if errors.Is(a.Err, unix.ENODEV) {
		return nil, fmt.Errorf("%s: %w", name, link.ErrNoDevice)
	}
	if a.Err != nil {
		return nil, fmt.Errorf("looking at %s: %w", name, a.Err)
	}
	return a.Link, nil
}
