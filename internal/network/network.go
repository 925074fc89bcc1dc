// Package network is the interface between Weft's agent and the networks that it serves: what a network does for a pod, and how the agent's
// wiring finds it. Records, locks, replays and rollback belong to attach/lifecycle; engines and their loops to package node.
package network

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/placement"
)

// ErrPlanAgain is in the chain of an error of Connect that another plan may avoid: something that the plan chose turned out to be unusable.
// Connect has then left nothing behind, and Plan is called again, once.
var ErrPlanAgain = errors.New("the planned attachment is unusable")

// Network is one kind of pod network on this node. attach/lifecycle calls it; it holds the attachment's lock during each call and keeps the
// record. Calls for different attachments are concurrent. An error that wraps a *cni.Error keeps its code.
type Network interface {
	// Plan chooses what the attachment claims, and changes nothing. inUse is what the node's attachments claim, including the plan before
	// ErrPlanAgain. After a conflict with an attachment that was recorded first, Plan is called again. The network sets Network, addresses,
	// claims, Details and other values that it needs later; the caller sets the sandbox, the pod, the boot, state and time.
	Plan(ctx context.Context, req *cni.Request, at placement.Decision, inUse attach.InUse) (attach.Record, error)
	// Connect creates what the record describes. It returns once all rules that decide on the pod's traffic are in effect. A repeated call
	// with the same record completes the attachment. Connect may call Records.Put to store more. Once a restart would complete the attachment,
	// it may also mark the record as attached; the caller does so otherwise. What a failed Connect created is removed by Remove.
	Connect(ctx context.Context, rec *attach.Record) (*types100.Result, error)
	// Close stops the pod's traffic at once, without the API server, even before HandedOver. What it cannot stop in time, it continues to stop
	// in the background. An error is logged; only one that wraps a *cni.Error fails the DEL. The record is marked as closing after Close
	// returns; Records.Attached omits it earlier.
	Close(ctx context.Context, rec attach.Record) error
	// Remove removes what closed attachments left, in one batch, and returns those that failed; they are retried. It is called after
	// HandedOver, and may be called again for what is removed already. Records of a former boot have nothing left in the kernel.
	Remove(ctx context.Context, recs []attach.Record) map[attach.Key]error
	// Check compares the node's state with the record.
	Check(ctx context.Context, rec attach.Record) error
	// Ready returns nil if pods can be attached, else what is missing and what to do.
	Ready() error
}

// Discarder is a Network that reserves something for a record from Plan on. Discard releases it: if the record could not be written, and
// when it has been deleted.
type Discarder interface {
	Discard(rec attach.Record)
}

// Limiter is a Network that may be able to attach pods while part of its function fails. STATUS then reports limited connectivity.
type Limiter interface {
	// Limits returns what is not in effect; nil: everything is.
	Limits() error
}

// Runner follows the network's objects. Run returns when ctx ends, or with an error that ends the agent.
type Runner interface {
	Run(ctx context.Context) error
	// HandedOver is closed once the network's complete first state is in the node's loops. From then on, the loops remove what is on the node
	// and in no fragment.
	HandedOver() <-chan struct{}
}

// Kind describes a network to the agent's wiring.
type Kind struct {
	// Name is the network's name in annotations, metrics and logs. Records' Network is Name, or Name.Part (KindOf).
	Name string
	// Present decides from the API server's objects whether this node serves the network. It is called again whenever an object of a kind in
	// Presence changes.
	Present func(ctx context.Context, objects client.Reader) (Presence, error)
	// Presence are the kinds of objects that Present reads.
	Presence []client.Object
	// Bind returns the network's own bindings of pods, from the current objects. It reads only kinds in Presence. It is also called while the
	// network is not present: a pod that is bound to it is then refused. Nil: the network has none.
	Bind func(ctx context.Context, objects client.Reader) (placement.Binder, error)
	// Care is the part of the node's state that belongs to the network.
	Care node.Care
	// ClosedPorts are UDP ports of the network's tunnels, which the other networks close to their pods before the node has a tunnel. No pod
	// may have one as a host port.
	ClosedPorts []uint16
	// Scheme adds the API groups that the network reads. Nil: those of Kubernetes are enough.
	Scheme func(*runtime.Scheme) error
	// Objects are the kinds that the network reads, including those of Presence. Each network has separate watches: one that waits for a kind
	// that the API server does not serve does not delay the others. A kind is watched from its first read on.
	Objects []Object
	// CNI is the network's conflist. Only that of the default network is written.
	CNI Conflist
	// New returns the network on this node, once what it needs of the node is there. It changes nothing before Run.
	New func(ctx context.Context, n *node.Node, deps Deps) (Network, Runner, error)
}

// Presence is the result of Present.
type Presence struct {
	// Present says that the network is configured. Why names the object that configures it, or the object that would; if
	// any object of a kind does, it names the kind, so that it stays the same while such objects come and go.
	Present bool
	Why     string
	// Default says that its object has annotation network.weft.dev/default "true".
	Default bool
	// Cluster says that the network can be the default one: it needs no binding to place a pod.
	Cluster bool
	// TunnelPorts are UDP ports of the network's tunnels that its objects configure. Together with ClosedPorts they are reserved: no pod may
	// have one as a host port.
	TunnelPorts []uint16
}

// Object is a kind of object that a network reads.
type Object struct {
	// Kind is an empty object of the kind. By limits the watch: selectors, namespaces. Zero: all objects.
	Kind client.Object
	By   ctrlcache.ByObject
	// Resource is the kind's resource, if it is not the plural of the kind in lower case.
	Resource string
	// Namespaced says that the objects are in namespaces.
	Namespaced bool
	// Strip removes what the network does not read from the object; nil keeps all of it.
	Strip cache.TransformFunc
}

// Conflist is a file of the container runtime's network configuration folder: its name, and its content once the network serves pods.
type Conflist struct {
	Name    string
	Content func() ([]byte, error)
}

// Records are the attachments of one network.
type Records interface {
	// Attached returns the complete attachments of this boot. A restart repairs these, and never removes them.
	Attached() []attach.Record
	// Put writes the record of an attachment whose Connect is in progress, or that is attached.
	Put(ctx context.Context, rec attach.Record) error
	// Reap schedules Remove for an attachment without a record, such as one whose link was found on the node.
	Reap(rec attach.Record)
	// TryLock takes the attachment's lock if no request and no removal holds it. It does not block.
	TryLock(key attach.Key) (unlock func(), free bool)
}

// Deps are what the agent gives a network in addition to the node.
type Deps struct {
	Log     *slog.Logger
	Records Records
	// Objects is the running cache of Kind.Objects. API is a client of the API server: for writes, and for objects that are read too rarely to
	// be watched.
	Objects ctrlcache.Cache
	API     client.Client
	// Config is the configuration of the API server's client, for the network's own clients.
	Config *rest.Config
	// Events sends events to the users of an object.
	Events Events
	// ClosedPorts are the ClosedPorts of all Kinds that the agent serves: UDP ports of tunnels between nodes, ascending, without duplicates.
	ClosedPorts []uint16
	// Changed is called when the result of Ready may have changed. It does not block.
	Changed func()
	// Report replaces the network's section of the node's NodeNetwork, named after the Kind. It does not block.
	Report func(weftv1.NodeNetworkSection)
}

// Events sends events on objects. Equal events in a row are counted.
type Events interface {
	Warning(object client.Object, reason, action, note string)
}

// KindOf returns the name of the Kind of a record's Network: the part before the first full stop.
func KindOf(network string) string {
	kind, _, _ := strings.Cut(network, ".")
	return kind
}
