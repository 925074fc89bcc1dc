package link

import (
	"context"
	"net"
	"net/netip"
)

// DeadGroup is the device group that links are moved to, after they are down, to be deleted in one call. Nothing else
// may ever be put into it: whatever is in it is deleted. The number is "WEFT" in ASCII.
const DeadGroup uint32 = 0x57454654

// Pair is the veth pair of one pod: the host's end, which becomes a port of a switch, and the pod's end.
type Pair struct {
	// HostName and PodName are the names of the two ends; both must pass ValidateName.
	HostName, PodName string
	// Netns is the path of the pod's network namespace.
	Netns string
	// Standing, if not empty, is the path of the namespace with the far ends of standing pairs: the pod's interface is put
	// upon the standing pair HostName, whose alias names no Owner. HostGroup is only compared, by Check, and TxOffloadOff not
	// looked at: both are of the pair from its beginning.
	Standing string
	// Shape is how the pod's traffic is shaped, from its first packet on. Only a pair that stands can have one.
	Shape Shape
	// Owner is the object the pair comes from ("attachment/<container>/<interface>"); it follows PodAliasPrefix in the
	// alias of the host's end. A link of the same name with another owner is ErrForeign. At most 200 bytes.
	Owner string
	// MTU of both ends in bytes; 0 is the kernel's default, 1500.
	MTU int
	// PodMAC is the pod end's address; empty lets the kernel choose one (and Check does not compare it).
	PodMAC net.HardwareAddr
	// HostGroup is the device group of the host's end. It is set in the request that makes the link, before it can be up.
	HostGroup uint32
	// TxOffloadOff turns transmit checksumming and segmentation off on the pod's end, as the userspace datapath needs: it
	// reads what the pod sends as it is. What it sends itself to the host's end it has finished.
	TxOffloadOff bool
	// PodAddresses is the exact list of the pod end's addresses. Without an IPv6 address IPv6 is disabled on it.
	PodAddresses []netip.Prefix
	// NoPrefixRoute keeps the kernel from adding a route for each address's prefix.
	NoPrefixRoute bool
	// PodRoutes are the routes in the pod's namespace. Their Netns and Device are not read: they go by the pod's end
	// (unless Blackhole). They carry Protocol like all of Weft's.
	PodRoutes []Route
	// PodSysctls are set on the pod's end before it is up, in addition to accept_ra 0 and, without an IPv6 address,
	// disable_ipv6 1, which are always set.
	PodSysctls Sysctls
}

// Created says what Create made or found.
type Created struct {
	// HostIndex and PodIndex are the interface indexes of the ends, each in its own namespace.
	HostIndex, PodIndex int
	// HostMAC and PodMAC are their addresses.
	HostMAC, PodMAC net.HardwareAddr
}

// PodLinks makes, checks and reaps the veth pairs of pods. *[Pods] does it in the kernel, *[FakePods] in memory.
type PodLinks interface {
	// Create makes the pair and configures both ends. It may be called again with the same pair, also after it was
	// interrupted anywhere, and completes what is missing. ErrNoNamespace and ErrNotNamespace are about Netns,
	// ErrForeign names what stands in the way.
	Create(ctx context.Context, pair Pair) (Created, error)
	// Check returns nil when everything is as Create leaves it, or a joined error of *Difference.
	// An error that is no Difference says that looking failed.
	Check(ctx context.Context, pair Pair) error
	// Delete removes the pairs whose host ends have these names; the more at once, the cheaper each. Names that do
	// not exist are no error. A link that is not Weft's pod veth is left alone and named in an ErrForeign, after
	// the others have been removed.
	Delete(ctx context.Context, hostNames ...string) error
	// Unplug removes a pod's interface from the standing pair that it is upon, which stays. One that is gone is no error. began
	// is called once the pod's namespace is held: from then on it does not matter whether somebody takes its path away.
	// ErrOccupied says that something is upon the pair still, and ErrNoDevice that the pair is not whole: it is of no use.
	Unplug(ctx context.Context, pair Pair, began func()) error
	// List returns the host ends that exist in the process's own namespace, name to owner: what a restart reaps from.
	List(ctx context.Context) (map[string]string, error)
}
