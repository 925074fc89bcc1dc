package ports

import (
	"cmp"
	"maps"
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// port is a port of this node.
type port struct {
	uuid string
	// object is the NeutronPort; nil: it was deleted, and the port is kept for its pod.
	object *weftv1.NeutronPort
	spec   Spec
	problems
	slot host.Slot
	// mac is that of the rows.
	mac net.HardwareAddr
	// pair is the pre-plugged pair; without a Name there is none. making keeps pods off the port while a pair is created for it.
	pair   podlink.Preplugged
	making bool
	// wanted reports that the port has to be plugged, desired that Open vSwitch's loop has its rows, and plugged that they are in effect.
	wanted, desired, plugged bool
	// wired is what the port is plugged with; zero if that is not known, because a pod of a former agent process is on it.
	wired wiring
	// outdated reports that the port is not plugged as it has to be: its object has changed, or its pair is missing. leaving reports that it
	// is being unplugged. Both stay until the port is unplugged, whatever fails and whatever its object says meanwhile.
	outdated, leaving bool
	// holder is the attachment on the port, with its pod; nil if there is none.
	holder *attach.Record
	// used reports that a pod was attached since the port was last plugged: it is unplugged and plugged again, which gives it a new conntrack
	// zone and new flows on br-int.
	used     bool
	released time.Time
	binding
	// sent is the last status written, and sentAt when.
	sent   *weftv1.NeutronPortStatus
	sentAt time.Time
}

// problems are why a port is not as it should be.
type problems struct {
	// problem is why the port cannot be plugged; nil if it can.
	problem error
	// unroutable is why the node cannot route the port's address to a pod; nil if it can. Such a port stays plugged, and no pod gets it.
	unroutable error
	// stuck is why the port could not be unplugged.
	stuck error
}

// binding is what is known of a port's binding on br-int.
type binding struct {
	// again reports that the port was plugged before: spec.active may be what Neutron reported then. bound reports that since the port was
	// last plugged, the program that controls br-int has bound it or, if it was not plugged before, OVN has installed its flows.
	again, bound bool
	// unplugs counts how often the port was unplugged.
	unplugs int
}

// Owner returns the owner of the rows of the port with a UUID.
func Owner(uuid string) reconcile.Owner { return reconcile.Owner(ownerPrefix + uuid) }

func (p *port) owner() reconcile.Owner { return Owner(p.uuid) }

// rows are the port's rows while it is plugged. Their mark outlives this agent process: a port that a pod has used is plugged again and
// rests, even if no status reports it. With a pre-plugged pair, a pod changes no row: there the attachment's record outlives the process,
// because it is kept until the port is unplugged.
func (p *port) rows() map[ovsdb.Key]ovsdb.Row {
	mark := host.Mark{Used: p.used && !p.paired(), Released: p.released}
	rows := host.PortRows(p.owner(), p.uuid, p.mac, host.Left{Slot: p.slot, Mark: mark})
	if p.paired() {
		maps.Copy(rows, host.PodRows(p.owner(), p.pair.Name, p.slot))
	}
	return rows
}

// paired reports whether the port has a pre-plugged pair.
func (p *port) paired() bool { return p.pair.Name != "" }

// wiring is the part of a port's spec that it is plugged with, besides its pair.
type wiring struct{ network, mac string }

// settled reports whether the port is plugged as its object says, and nothing is about to change that.
func (p *port) settled() bool {
	return p.wanted && p.plugged && !p.used && !p.making && !p.outdated && !p.leaving
}

// status returns the port's status.
func (p *port) status(rows *node.RowLoop) weftv1.NeutronPortStatus {
	s := weftv1.NeutronPortStatus{Plugged: p.plugged || p.holder != nil || p.used || p.leaving}
	problem := cmp.Or(p.problem, p.unroutable, p.stuck)
	if problem == nil && p.wanted {
		problem = rows.Failure(p.owner())
	}
	if problem != nil {
		s.Message = problem.Error()[:min(len(problem.Error()), maxMessage)]
	}
	if p.holder != nil {
		s.Pod = &weftv1.NeutronPortPod{Namespace: p.holder.PodNamespace, Name: p.holder.PodName, UID: p.holder.PodUID}
	} else if !p.released.IsZero() {
		at := metav1.NewTime(p.released.Truncate(time.Second))
		s.ReleasedAt = &at
	}
	return s
}
