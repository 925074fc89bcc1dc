package traffic

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// GroupMember sends datagrams to a group, and receives those of the other members.
type GroupMember struct {
	group netip.AddrPort
	out   *net.UDPConn
	in    *net.UDPConn
	done  chan struct{}

	mu       sync.Mutex
	received map[string]int
}

// maxDatagram is the most that a UDP datagram holds over IPv4.
const maxDatagram = 65507

// JoinGroup has an interface in the namespace at path join a group. What is sent there does not come back by the kernel's own
// loop, so that what comes back has been on the wire.
func JoinGroup(path, device string, group netip.AddrPort) (*GroupMember, error) {
	s := &GroupMember{group: group, done: make(chan struct{}), received: map[string]int{}}
	err := in(path, func() error {
		ifi, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		if s.in, err = net.ListenMulticastUDP("udp4", ifi, net.UDPAddrFromAddrPort(group)); err != nil {
			return err
		}
		s.out, err = net.ListenUDP("udp4", nil)
		return err
	})
	if err == nil {
		err = errors.Join(s.tune(), deepen(s.in))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("joining %s by %s: %w", group, device, err), s.close())
	}
	go s.run()
	return s, nil
}

// tune keeps the kernel from giving what is sent to the sender itself.
func (s *GroupMember) tune() error {
	raw, err := s.out.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP, 0) })
	return errors.Join(err, set)
}

func (s *GroupMember) run() {
	defer close(s.done)
	buffer := make([]byte, maxDatagram)
	for {
		n, err := s.in.Read(buffer)
		if err != nil {
			return // closed
		}
		s.mu.Lock()
		s.received[string(buffer[:n])]++
		s.mu.Unlock()
	}
}

// By has what is sent leave by an interface of the namespace at path, whatever its routes say.
func (s *GroupMember) By(path, device string) error {
	return in(path, func() error {
		ifi, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		raw, err := s.out.SyscallConn()
		if err != nil {
			return err
		}
		var set error
		err = raw.Control(func(fd uintptr) {
			set = unix.SetsockoptIPMreqn(int(fd), unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(ifi.Index)}) //nolint:gosec // an interface's index
		})
		return errors.Join(err, set)
	})
}

// Send sends one datagram to the group.
func (s *GroupMember) Send(text []byte) error {
	_, err := s.out.WriteToUDPAddrPort(text, s.group)
	return err
}

// Received returns the datagrams received, and how often each arrived.
func (s *GroupMember) Received() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.received)
}

// Count returns how often a datagram arrived.
func (s *GroupMember) Count(text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received[text]
}

func (s *GroupMember) close() error {
	var errs []error
	for _, conn := range []*net.UDPConn{s.in, s.out} {
		if conn != nil {
			errs = append(errs, conn.Close())
		}
	}
	return errors.Join(errs...)
}

// Close leaves the group.
func (s *GroupMember) Close() error {
	err := s.close()
	<-s.done
	return err
}
