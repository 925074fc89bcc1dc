package flannel

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/test/traffic"
)

// packets is the number of datagrams whose processor time is measured in a round.
const packets = 100_000

// packetTime returns the processor time of a datagram of an established connection, from the sender's call to the receiver's queue: the
// kernel forwards datagrams on the sender's thread. The receiver reads and answers the first one only.
func packetTime(from, in string, to netip.Addr) (time.Duration, error) {
	sink, err := traffic.ListenUDP(in, netip.AddrPortFrom(to, 0))
	if err != nil {
		return 0, err
	}
	defer func() { _ = sink.Close() }()
	at := netip.AddrPortFrom(to, sink.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort().Port())
	answered := make(chan error, 1)
	go func() {
		sender, err := netip.AddrPort{}, sink.SetReadDeadline(time.Now().Add(transferLimit))
		if err == nil {
			_, sender, err = sink.ReadFromUDPAddrPort(make([]byte, 64))
		}
		if err == nil {
			_, err = sink.WriteToUDPAddrPort([]byte{1}, sender)
		}
		answered <- err
	}()
	var used time.Duration
	err = traffic.In(from, func() (err error) {
		used, err = sendDatagrams(at, answered)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("send datagrams to %s: %w", at, err)
	}
	return used / packets, nil
}

// sendDatagrams sends a datagram, awaits its answer, and measures the following ones. It has to be called on a locked thread.
func sendDatagrams(to netip.AddrPort, answered <-chan error) (time.Duration, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		return 0, err
	}
	limit := unix.NsecToTimeval(transferLimit.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return 0, err
	}
	payload := make([]byte, 64)
	if _, err := unix.Write(fd, payload); err != nil {
		return 0, err
	}
	if err := <-answered; err != nil {
		return 0, err
	}
	if _, err := unix.Read(fd, make([]byte, 64)); err != nil {
		return 0, err
	}
	var before, after unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before); err != nil {
		return 0, err
	}
	for range packets {
		if _, err := unix.Write(fd, payload); err != nil {
			return 0, err
		}
	}
	err = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after)
	return time.Duration(after.Nano() - before.Nano()), err
}
