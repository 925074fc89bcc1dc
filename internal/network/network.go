// Package network is the interface between Weft's agent and the networks that it serves: what a network does for a pod, and how the
// agent's wiring knows it. Records, locks, replays and undoing are attach/lifecycle's; engines and their loops are node's.
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

// ErrPlanAgain is in the chain of an error of Connect that another plan may avoid: something that the plan chose turned out to be
// unusable. Connect has then left nothing behind, and Plan is called again, once.
var ErrPlanAgain = errors.New("the planned attachment is unusable")

// Network is one kind of pod network on this node. attach/lifecycle calls it; it holds the attachment's lock during each call and keeps
// the record. Calls for different attachments are concurrent. An error that wraps a *cni.Error keeps its code.
type Network interface {
	// Plan chooses what the attachment claims, and changes nothing. inUse is what the node's attachments claim, the plan before
	// ErrPlanAgain among them; after a conflict with one that came first, Plan is called again. The network sets Network, addresses, claims, Details and what else it
	// wants kept; the sandbox, the pod, the boot, state and time are set by the caller.
	Plan(ctx context.Context, req *cni.Request, at placement.Decision, inUse attach.InUse) (attach.Record, error)
	// Connect makes what the record says, and returns once everything that judges the pod's traffic is in effect. Called again with
	// the same record, it makes the attachment whole. It may call Records.Put to keep more. What a failed Connect made is removed
	// by Remove.
	Connect(ctx context.Context, rec *attach.Record) (*types100.Result, error)
	// Close stops the pod's traffic at once, without the API server, also before HandedOver. What it cannot stop in time it goes on
	// with by itself. An error is logged; only one that wraps a *cni.Error fails the DEL. The record is marked as closing after Close
	// returns; Records.Attached leaves it out before.
	Close(ctx context.Context, rec attach.Record) error
	// Remove removes what closed attachments left, in one batch, and returns those that failed: they are tried again. It is called
	// after HandedOver, and again for what is gone already. Records of a former boot have nothing left in the kernel.
	Remove(ctx context.Context, recs []attach.Record) map[attach.Key]error
	// Check compares what the node has with the record.
	Check(ctx context.Context, rec attach.Record) error
	// Ready returns nil when pods can be attached, else what is missing and what to do.
	Ready() error
}

// Discarder is a Network that keeps something for a record from Plan on. Discard gives it back: when the record could not be written, and
// when it has been deleted.
type Discarder interface {
	Discard(rec attach.Record)
}

// Limiter is a Network that can attach pods and yet not do all it should: STATUS then reports limited connectivity.
type Limiter interface {
	// Limits returns what is not in effect; nil: all is.
	Limits() error
}

// Runner follows the network's objects. Run returns when ctx ends, or with an error that ends the agent.
type Runner interface {
	Run(ctx context.Context) error
	// HandedOver is closed once the network's complete first state is in the node's loops: from then on what the loops find on the
	// node and no fragment names is removed.
	HandedOver() <-chan struct{}
}

// Kind is how wiring knows a network.
type Kind struct {
	// Name is the network's in annotations, metrics and logs. Records' Network is Name, or Name.Part (KindOf).
	Name string
	// Present decides from the API server's objects whether this node serves the network. It is called again whenever one of
	// Presence changes.
	Present func(ctx context.Context, objects client.Reader) (Presence, error)
	// Presence are the kinds of objects that Present reads.
	Presence []client.Object
	// Bind returns the network's own bindings of pods, from the objects as they are now. It reads kinds of Presence only, and is asked also
	// while the network is not present: a pod that is bound to it is then refused. Nil: it has none.
	Bind func(ctx context.Context, objects client.Reader) (placement.Binder, error)
	// Care is what of the node's state is the network's own.
	Care node.Care
	// ClosedPorts are UDP ports of the network's tunnels, which the other networks close to their pods before the node has a tunnel.
	ClosedPorts []uint16
	// Scheme adds the API groups that the network reads. Nil: those of Kubernetes are enough.
	Scheme func(*runtime.Scheme) error
	// Objects are the kinds that the network reads, those of Presence among them. Each network has watches of its own: one
	// that waits for a kind that the API server does not serve holds up no other. Only kinds that are asked for are watched.
	Objects []Object
	// CNI is the network's conflist; the default network's is written.
	CNI Conflist
	// New returns the network on this node, once what it needs of the node is there. Nothing is changed before Run.
	New func(ctx context.Context, n *node.Node, deps Deps) (Network, Runner, error)
}

// Presence is what Present finds.
type Presence struct {
	// Present says that the network is configured, and Why which object says so, or what would.
	Present bool
	Why     string
	// Default says that its object has annotation network.weft.dev/default "true".
	Default bool
	// Cluster says that the network can be the default one: it needs no binding to place a pod.
	Cluster bool
}

// Object is a kind of object that a network reads.
type Object struct {
	// Kind is an empty object of the kind, and By how it is watched: selectors, namespaces. Zero: all of them.
	Kind client.Object
	By   ctrlcache.ByObject
	// Resource is the kind's resource, where it is not the plural of the kind in lower case.
	Resource string
	// Namespaced says that its objects are in namespaces.
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
	// Attached returns the attachments of this boot that are complete: what a restart makes whole, and never removes.
	Attached() []attach.Record
	// Put writes the record of an attachment whose Connect is under way, or that is attached.
	Put(ctx context.Context, rec attach.Record) error
	// Reap has Remove called for an attachment that no record is of, such as one whose link was found on the node.
	Reap(rec attach.Record)
	// TryLock takes the attachment's lock when no request and no removal has it. It does not wait.
	TryLock(key attach.Key) (unlock func(), free bool)
}

// Deps are what the agent gives a network beside the node.
type Deps struct {
	Log     *slog.Logger
	Records Records
	// Objects are Kind.Objects as watched, running; API is the API server itself: for writes, and for what is read too rarely to be watched.
	Objects ctrlcache.Cache
	API     client.Client
	// Config is the API server's, for clients of the network's own.
	Config *rest.Config
	// Events reports what concerns a user of the object.
	Events Events
	// ClosedPorts are the Kinds' that the agent serves: UDP ports of tunnels between nodes, in ascending order, each once.
	ClosedPorts []uint16
	// Changed is called when Ready may return something else. It does not wait.
	Changed func()
	// Report replaces the network's section of the node's NodeNetwork, whose name is the Kind's. It does not wait.
	Report func(weftv1.NodeNetworkSection)
}

// Events reports events of objects; equal ones in a row are counted.
type Events interface {
	Warning(object client.Object, reason, action, note string)
}

// KindOf returns the name of the Kind of a record's Network: what is before the first full stop.
func KindOf(network string) string {
	kind, _, _ := strings.Cut(network, ".")
	return kind
}
