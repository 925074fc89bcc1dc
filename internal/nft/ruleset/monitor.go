package ruleset

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nfnetlink"
)

// From linux/netfilter/nfnetlink.h and nf_tables.h.
const (
	nfnlgrpNftables  = 7
	nftMsgNewTable   = 0
	nftMsgDelTable   = 2
	nftMsgNewChain   = 3
	nftMsgDelChain   = 5
	nftMsgNewRule    = 6
	nftMsgDelRule    = 8
	nftMsgNewGen     = 15
	nftaGenID        = 1
	nftaTableName    = 1 // also NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, NFTA_SET_TABLE, NFTA_SET_ELEM_LIST_TABLE
	nftaRuleChain    = 2
	nftaChainName    = 3
	nftaChainHook    = 4
	netlinkReadLimit = 128 << 10
)

// driftBuffer is how many events wait for the reader before they are replaced by one All.
const driftBuffer = 64

// eventBuffer is the socket's receive buffer in bytes: room for the events of a transaction of about ten thousand elements.
const eventBuffer = 8 << 20

// Monitor reports what other processes change, until ctx ends; then it closes the channel. It reports changes in the managed tables and, if
// foreign chains are read, changes of those chains. It does not report foreign sets and maps: they change every second, and on their own
// let no packet pass. The first value, with All set, reports that watching has begun. When the kernel dropped events (ENOBUFS), All is
// reported. Slow readers lose detail (All), never a change. A socket that fails otherwise ends the watching: the last value has the reason
// (Err).
func (e *Engine) Monitor(ctx context.Context) (<-chan nft.Drift, error) {
	m := &monitor{engine: e, out: make(chan nft.Drift, driftBuffer)}
	if err := e.namespace.Inside(m.subscribe); err != nil {
		return nil, fmt.Errorf("watching nftables: %w", err)
	}
	m.out <- nft.Drift{All: true}
	go m.run(ctx)
	return m.out, nil
}

type monitor struct {
	engine *Engine
	out    chan nft.Drift
	socket io.ReadCloser
	// touched are the tables of the transaction whose end has not been received: only its end identifies the sender.
	touched map[tableKey]*nft.Drift
}

func (m *monitor) subscribe() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	// Without the right to exceed net.core.rmem_max, the default buffer is used: events are lost earlier, which is reported.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, eventBuffer)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (nfnlgrpNftables - 1)}); err != nil {
		return fmt.Errorf("subscribing to nftables: %w", errors.Join(err, unix.Close(fd)))
	}
	m.socket = os.NewFile(uintptr(fd), "nftables events")
	return nil
}

func (m *monitor) run(ctx context.Context) {
	defer close(m.out)
	stop := context.AfterFunc(ctx, func() { _ = m.socket.Close() })
	defer func() {
		stop()
		_ = m.socket.Close() // closing twice is a harmless error
	}()
	m.touched = map[tableKey]*nft.Drift{}
	buffer := make([]byte, netlinkReadLimit)
	for ctx.Err() == nil {
		size, err := m.socket.Read(buffer)
		switch {
		case err == nil:
			m.events(ctx, buffer[:size])
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR):
			m.send(nft.Drift{All: true})
		case ctx.Err() != nil: // closed because ctx ended
			return
		default:
			select {
			case m.out <- nft.Drift{All: true, Err: fmt.Errorf("watching nftables: %w", err)}:
			case <-ctx.Done():
			}
			return
		}
	}
}

func (m *monitor) events(ctx context.Context, datagram []byte) {
	messages, err := syscall.ParseNetlinkMessage(datagram)
	if err != nil {
		m.send(nft.Drift{All: true})
		return
	}
	for _, message := range messages {
		if message.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES {
			continue
		}
		attrs, err := nfnetlink.Attributes(message.Data)
		if err != nil || len(message.Data) == 0 {
			m.send(nft.Drift{All: true})
			continue
		}
		if message.Header.Type&0xff == nftMsgNewGen {
			m.transaction(ctx, message.Header.Pid, attrs[nftaGenID])
			continue
		}
		m.touch(message.Header.Type&0xff, familyOf(message.Data[0]), attrs)
	}
}

// touch records one change of the current transaction.
func (m *monitor) touch(kind uint16, family nft.Family, attrs map[uint16][]byte) {
	name := unix.ByteSliceToString(attrs[nftaTableName])
	if name == "" {
		return
	}
	key := tableKey{family, name}
	if m.touched[key] == nil {
		m.touched[key] = &nft.Drift{Family: family, Table: name}
	}
	drift := m.touched[key]
	var chain string
	switch kind {
	case nftMsgNewTable, nftMsgDelTable:
		drift.Hooks = true
	case nftMsgNewChain, nftMsgDelChain:
		chain = unix.ByteSliceToString(attrs[nftaChainName])
		_, base := attrs[nftaChainHook]
		drift.Hooks = drift.Hooks || base
	case nftMsgNewRule, nftMsgDelRule:
		chain = unix.ByteSliceToString(attrs[nftaRuleChain])
	}
	// Rules are grouped by chain; transaction removes the remaining duplicates.
	if n := len(drift.Chains); chain != "" && (n == 0 || drift.Chains[n-1] != chain) {
		drift.Chains = append(drift.Chains, chain)
	}
}

// transaction ends a transaction, sent from a netlink port: it reports what was changed, unless the engine sent it.
func (m *monitor) transaction(ctx context.Context, port uint32, generation []byte) {
	touched := m.touched
	m.touched = map[tableKey]*nft.Drift{}
	if len(generation) == 4 && m.engine.own.mine(ctx, port, binary.BigEndian.Uint32(generation)) {
		return
	}
	for table, drift := range touched {
		drift.InCare = m.engine.cares(table)
		slices.Sort(drift.Chains)
		drift.Chains = slices.Compact(drift.Chains)
		if drift.InCare || m.engine.foreign.Load() && (drift.Hooks || len(drift.Chains) > 0) {
			m.send(*drift)
		}
	}
}

func familyOf(number byte) nft.Family {
	switch number {
	case unix.NFPROTO_IPV4:
		return nft.FamilyIPv4
	case unix.NFPROTO_IPV6:
		return nft.FamilyIPv6
	case unix.NFPROTO_INET:
		return nft.FamilyInet
	case unix.NFPROTO_ARP:
		return nft.FamilyARP
	case unix.NFPROTO_BRIDGE:
		return nft.FamilyBridge
	case unix.NFPROTO_NETDEV:
		return nft.FamilyNetdev
	}
	return ""
}

// numberOf returns the NFPROTO number of a family.
func numberOf(family nft.Family) byte {
	for number := range byte(unix.NFPROTO_NUMPROTO) {
		if familyOf(number) == family {
			return number
		}
	}
	return unix.NFPROTO_UNSPEC
}

// send never blocks: if the buffer is full, its content and the new event are replaced by one All. There is no other sender.
func (m *monitor) send(drift nft.Drift) {
	select {
	case m.out <- drift:
		return
	default:
	}
	for {
		select {
		case <-m.out:
		default:
			m.out <- nft.Drift{All: true}
			return
		}
	}
}
