package traffic

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// floodData is what each datagram of a flood holds, in bytes, and floodPacket its IP packet with the headers of IPv4 and UDP.
	floodData   = 1200
	floodPacket = floodData + 28
	// floodTick is how often a flood sends, and floodLate how much it sends at most of what it is late with.
	floodTick = 2 * time.Millisecond
	floodLate = 50 * time.Millisecond
	// floodBuffer is what a flood's receiver holds until it is read, in bytes.
	floodBuffer = 4 << 20
)

// Flood is datagrams sent at a rate, whatever becomes of them, and counted where they arrive.
type Flood struct {
	from, to *net.UDPConn
	target   netip.AddrPort
	arrived  atomic.Uint64
	stop     chan struct{}
	group    sync.WaitGroup
}

// NewFlood sends from one namespace to an address in another. The rate is in bits of IP packets a second.
func NewFlood(from, in string, to netip.AddrPort, rate uint64) (*Flood, error) {
	f := &Flood{target: to, stop: make(chan struct{})}
	var err error
	if f.to, err = ListenUDP(in, to); err != nil {
		return nil, err
	}
	if f.from, err = ListenUDP(from, netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); err == nil {
		err = f.to.SetReadBuffer(floodBuffer)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	f.group.Go(f.count)
	f.group.Go(func() { f.send(float64(rate) / (8 * floodPacket)) })
	return f, nil
}

func (f *Flood) count() {
	buffer := make([]byte, 2*floodData)
	for {
		n, _, err := f.to.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return // closed
		}
		f.arrived.Add(uint64(n) + floodPacket - floodData) //nolint:gosec // a length
	}
}

// send sends so many datagrams a second.
func (f *Flood) send(rate float64) {
	ticker := time.NewTicker(floodTick)
	defer ticker.Stop()
	datagram := make([]byte, floodData)
	due, last := 0.0, time.Now()
	for {
		select {
		case <-f.stop:
			return
		case now := <-ticker.C:
			due += rate * min(now.Sub(last), floodLate).Seconds()
			last = now
		}
		for ; due >= 1; due-- {
			_, _ = f.from.WriteToUDPAddrPort(datagram, f.target) // what is not sent does not arrive
		}
	}
}

// Arrived returns how many bytes of IP packets have arrived.
func (f *Flood) Arrived() uint64 { return f.arrived.Load() }

// Close ends the flood.
func (f *Flood) Close() error {
	close(f.stop)
	err := f.to.Close()
	if f.from != nil {
		err = errors.Join(err, f.from.Close())
	}
	f.group.Wait()
	return err
}
