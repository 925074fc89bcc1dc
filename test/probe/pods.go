package probe

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/podruntime"
	"weft.dev/weft/test/traffic"
)

// CodeTryAgain is the CNI specification's "try again later".
const CodeTryAgain = 11

// AsFailure returns the network's own error in err, if it is one.
func AsFailure(err error) (*podruntime.Failure, bool) { return errors.AsType[*podruntime.Failure](err) }

// AddPod adds a pod; what says "try again later" it tries again, with a new sandbox and the same object, as a kubelet does. With an error
// comes what is to be detached, or nil.
func AddPod(ctx context.Context, c *lab.Cluster, spec lab.PodSpec) (*lab.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	p, err := c.AddPod(ctx, spec)
	for {
		failure, known := AsFailure(err)
		if err == nil || !known || failure.Code != CodeTryAgain || ctx.Err() != nil {
			return p, err
		}
		if err := Detach(ctx, p); err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
		p, err = c.AddAgain(ctx, spec, p)
	}
}

// again is how long a runtime waits before it repeats what failed.
const again = 50 * time.Millisecond

// Detach ends a pod's sandbox, trying again while the agent says so. It may be repeated.
func Detach(ctx context.Context, p *lab.Pod) error {
	ticker := time.NewTicker(again)
	defer ticker.Stop()
	for {
		_, err := p.Detach(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}

// HostEnd returns the MAC address and the name of the node's end of a pod's interface.
func HostEnd(p *lab.Pod) (mac net.HardwareAddr, name string, err error) {
	var eth0 netlink.Link
	if err = traffic.In(p.Netns, func() (err error) { eth0, err = netlink.LinkByName("eth0"); return err }); err != nil {
		return nil, "", err
	}
	index := eth0.Attrs().ParentIndex
	if eth0.Type() == "macvlan" { // on a pre-plugged port
		var far netlink.Link
		ports := p.Node.Root("/run/weft/cni/ports")
		if err = traffic.In(ports, func() (err error) { far, err = netlink.LinkByIndex(index); return err }); err != nil {
			return nil, "", err
		}
		index = far.Attrs().ParentIndex
	}
	err = traffic.In(p.Node.Netns, func() error {
		link, err := netlink.LinkByIndex(index)
		if err == nil {
			mac, name = link.Attrs().HardwareAddr, link.Attrs().Name
		}
		return err
	})
	return mac, name, err
}
