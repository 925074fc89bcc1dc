package link

import (
	"fmt"
	"strings"

	"github.com/safchain/ethtool"
)

// isTxOffload reports whether a feature of the kernel (net/ethtool/common.c) leaves a packet unfinished on transmission: a
// checksum to be filled in, or a segment to be cut. What reads a veth by a packet socket would see it so.
func isTxOffload(feature string) bool {
	return strings.HasPrefix(feature, "tx-") &&
		(strings.HasPrefix(feature, "tx-checksum-") || strings.HasSuffix(feature, "-segmentation"))
}

// txOffloads calls visit for each transmit offload that can be changed, on a device of the calling thread's namespace.
func txOffloads(tool *ethtool.Ethtool, device string, visit func(feature string, active bool)) error {
	features, err := tool.FeaturesWithState(device)
	if err != nil {
		return fmt.Errorf("reading tx offload of %s: %w", device, err)
	}
	for name, state := range features {
		if isTxOffload(name) && state.Available && !state.NeverChanged {
			visit(name, state.Active)
		}
	}
	return nil
}

// txOffload reads whether any transmit offload is active: On, or Off when none is or can be.
func txOffload(device string) (Toggle, error) {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return Leave, fmt.Errorf("opening a socket for ethtool: %w", err)
	}
	defer tool.Close()
	found := Off
	err = txOffloads(tool, device, func(_ string, active bool) {
		if active {
			found = On
		}
	})
	return found, err
}

// setTxOffload turns transmit checksumming and all segmentation off, or on.
func setTxOffload(device string, state Toggle) error {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("opening a socket for ethtool: %w", err)
	}
	defer tool.Close()
	change := map[string]bool{}
	err = txOffloads(tool, device, func(feature string, active bool) {
		if active != (state == On) {
			change[feature] = state == On
		}
	})
	if err != nil || len(change) == 0 {
		return err
	}
	if err := tool.Change(device, change); err != nil {
		return fmt.Errorf("turning tx offload of %s %s: %w", device, state, err)
	}
	return nil
}
