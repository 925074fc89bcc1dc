package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"weft.dev/weft/internal/keep"
)

// forwarding is the kernel's setting that it forwards IPv6 packets, of the network namespace in which it was opened. The delegate bridge
// turns it on for pods with IPv6 addresses, and so does the agent. On other nodes it stays as it is: a node that forwards IPv6 ignores
// router advertisements, unless accept_ra of the interface is 2.
type forwarding struct {
	file *os.File
	err  error // why there is no file
}

const forwardingName = "net.ipv6.conf.all.forwarding"

func openForwarding() forwarding {
	file, err := os.OpenFile("/proc/sys/net/ipv6/conf/all/forwarding", os.O_RDWR, 0)
	return forwarding{file, err}
}

func (f *forwarding) close() {
	if f.file != nil {
		_ = f.file.Close() // each write was complete
	}
}

// turnOn returns the setting's name if it was off.
func (f *forwarding) turnOn() (put string, err error) {
	if f.err != nil {
		return "", fmt.Errorf("turn %s on: %w", forwardingName, f.err)
	}
	have := make([]byte, 16)
	size, err := f.file.ReadAt(have, 0)
	if err == nil || errors.Is(err, io.EOF) {
		if string(bytes.TrimSpace(have[:size])) == "1" {
			return "", nil
		}
		_, err = f.file.WriteAt([]byte("1"), 0)
	}
	if err != nil {
		return "", fmt.Errorf("turn %s on: %w", forwardingName, err)
	}
	return forwardingName, nil
}

// keepForwarding turns forwarding of IPv6 on again, when another program turns it off, until ctx ends.
func (n *Network) keepForwarding(ctx context.Context) error {
	k := &keep.Keeper{
		Things: []keep.Thing{{Name: "forwarding", Restore: func() (string, error) {
			if b, _ := n.current(); b == nil || !b.six() {
				return "", nil
			}
			return n.forwarding.turnOn()
		}}},
		Report: func(_ keep.Thing, put string, err error) {
			n.opts.Log.Warn("forwarding of IPv6 was turned off by another program", "setting", put, "error", err)
		},
	}
	return k.Run(ctx, nil)
}
