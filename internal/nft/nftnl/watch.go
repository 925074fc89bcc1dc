package nftnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// groupNFTables is NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h.
const groupNFTables = 7

// Drift reports that other programs have changed the table, or may have: the caller reads again.
type Drift struct {
	// Err is why watching has ended before its context. This is the last value.
	Err error
}

// Watch reports changes of the table by other programs until ctx ends; then it closes the channel. Reports that have not been received are
// merged. The first one reports that watching has begun.
func (e *Engine) Watch(ctx context.Context) (<-chan Drift, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(e.netns.Fd())})
	if err != nil {
		return nil, fmt.Errorf("watching nftables: %w", err)
	}
	if err := errors.Join(conn.SetReadBuffer(bufferSize), conn.JoinGroup(groupNFTables)); err != nil {
		return nil, fmt.Errorf("watching nftables: %w", errors.Join(err, conn.Close()))
	}
	out := make(chan Drift, 1)
	out <- Drift{}
	go e.watch(ctx, conn, out)
	return out, nil
}

func (e *Engine) watch(ctx context.Context, conn *netlink.Conn, out chan Drift) {
	defer close(out)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends Receive
	defer func() {
		if stop() {
			_ = conn.Close() // only used for reading
		}
	}()
	for {
		messages, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !errors.Is(err, unix.ENOBUFS):
			report(out, Drift{Err: fmt.Errorf("watching nftables: %w", err)})
			return
		case err != nil || e.foreign(messages):
			report(out, Drift{})
		}
	}
}

// report replaces a pending report. There is no other sender.
func report(out chan Drift, drift Drift) {
	select {
	case <-out:
	default:
	}
	out <- drift
}

// foreign reports whether one of the messages concerns the table and is not from the engine.
func (e *Engine) foreign(messages []netlink.Message) bool {
	own := e.port.Load()
	for _, message := range messages {
		if message.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || message.Header.PID == own || len(message.Data) < 4 {
			continue
		}
		if message.Header.Type&0xff == unix.NFT_MSG_NEWGEN || message.Data[0] != byte(e.table.Family) {
			continue
		}
		// The table's name is the first attribute of every object's message (NFTA_TABLE_NAME, NFTA_CHAIN_TABLE and so on are 1).
		data := message.Data[4:]
		if len(data) < 4 {
			continue
		}
		length, kind := int(binary.NativeEndian.Uint16(data)), binary.NativeEndian.Uint16(data[2:])
		if kind == 1 && length >= 4 && length <= len(data) && strings.TrimRight(string(data[4:length]), "\x00") == e.table.Name {
			return true
		}
	}
	return false
}
