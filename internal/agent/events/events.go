// Package events reports on objects of the API server by events: on pods that cannot be attached, on the Node, and on objects that the node
// does not implement as written.
package events

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/reconcile"
)

// Reasons of the agent's events.
const (
	reasonAttachFailed = "AttachFailed"
	reasonExhausted    = "PodAddressesExhausted"
	ReasonDrift        = "DriftRepaired"
	reasonClosed       = "PortClosed"
	reasonRecord       = "AttachmentRecordBroken"
	reasonService      = "ServiceNotAsSpecified"
	reasonPolicy       = "PolicyNotAsSpecified"
	reasonEgressIP     = "EgressIPNotHeld"
)

// RecordOwner begins the owner of an attachment record that cannot be read; the record's file name follows.
const RecordOwner = "record/"

// Normally there are few events. These limits apply during a fault. client-go retries an event that the API server does not accept for two
// minutes, so at most eventBurst events and 120 s of eventRate wait at once.
const (
	eventRate  = rate.Limit(0.5)
	eventBurst = 20
	// eventRest is the time within which the same event on the same object is not repeated: a runtime retries a pod's ADD every few seconds.
	eventRest = 5 * time.Minute
	// eventMemory bounds how many events are remembered for that.
	eventMemory = 1000
	// eventNote bounds an event's note in bytes (the API's limit is 1 KiB).
	eventNote = 1000
)

// Object is the object of an event.
type Object struct {
	Kind, APIVersion, Namespace, Name, UID string
	// Version is the object's resourceVersion, if events on different versions are different events; else "". client-go treats events that
	// differ only in their notes as the same, and keeps the first note.
	Version string
	// Field is the part of the object, if events on different parts are different events; else "".
	Field string
}

// Recorder reports on objects by events. It never waits for the API server, and uses little memory while the API server is unreachable:
// events beyond the limits are dropped and counted.
type Recorder struct {
	sink    events.EventRecorder
	node    string
	metrics *metrics.Agent
	limit   *rate.Limiter

	mu   sync.Mutex
	sent map[eventKey]time.Time
}

// eventKey identifies an event. Events with different keys are different.
type eventKey struct {
	about  Object
	reason string
	note   string
}

// New returns a recorder that sends events to the API server until ctx ends.
func New(ctx context.Context, clients kubernetes.Interface, node string, m *metrics.Agent) (*Recorder, error) {
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: clients.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	context.AfterFunc(ctx, broadcaster.Shutdown)
	return &Recorder{
		sink: broadcaster.NewRecorder(runtime.NewScheme(), "weft-agent"), node: node, metrics: m,
		limit: rate.NewLimiter(eventRate, eventBurst), sent: map[eventKey]time.Time{},
	}, nil
}

// warn reports a problem with an object: a reason of one word, the action that failed, and a note with details.
func (r *Recorder) warn(about Object, reason, action, note string) {
	note = strings.ToValidUTF8(note[:min(len(note), eventNote)], "")
	if !r.fresh(eventKey{about, reason, note}, time.Now()) {
		return
	}
	if !r.limit.Allow() {
		r.metrics.Event(false)
		return
	}
	r.metrics.Event(true)
	r.sink.Eventf(&corev1.ObjectReference{
		Kind: about.Kind, APIVersion: about.APIVersion, Namespace: about.Namespace, Name: about.Name, UID: types.UID(about.UID), ResourceVersion: about.Version,
		FieldPath: about.Field,
	}, nil, corev1.EventTypeWarning, reason, action, "%s", note)
}

// fresh reports whether an event has not been sent recently.
func (r *Recorder) fresh(key eventKey, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, wasSent := r.sent[key]; wasSent && now.Sub(last) < eventRest {
		return false
	}
	if len(r.sent) >= eventMemory {
		clear(r.sent)
	}
	r.sent[key] = now
	return true
}

// Node reports on this node. part is the part of the node that the event is about, so that events about several parts are not merged; "":
// none.
func (r *Recorder) Node(reason, action, part, note string) {
	// kubectl finds a node's events by its name in the UID field, as kubelets write them.
	r.warn(Object{Kind: "Node", APIVersion: "v1", Name: r.node, UID: r.node, Field: part}, reason, action, note)
}

// Service reports what this node does not implement of a Service.
func (r *Recorder) Service(namespace, name, uid, note string) {
	r.warn(Object{Kind: "Service", APIVersion: "v1", Namespace: namespace, Name: name, UID: uid}, reasonService, "Program", r.node+": "+note)
}

// Policy reports what this node does not implement of a NetworkPolicy.
func (r *Recorder) Policy(np *networkingv1.NetworkPolicy, note string) {
	about := Object{
		Kind: "NetworkPolicy", APIVersion: networkingv1.SchemeGroupVersion.String(),
		Namespace: np.Namespace, Name: np.Name, UID: string(np.UID), Version: np.ResourceVersion,
	}
	r.warn(about, reasonPolicy, "Program", r.node+": "+note)
}

// EgressNetworkPolicy reports problems of a policy on this node, such as names that cannot be resolved.
func (r *Recorder) EgressNetworkPolicy(object *networkv1.EgressNetworkPolicy, reason, note string) {
	r.warn(Object{
		Kind: "EgressNetworkPolicy", APIVersion: networkv1.GroupVersion().String(), Namespace: object.Namespace, Name: object.Name, UID: string(object.UID),
	}, reason, "Resolve", r.node+": "+note)
}

// HostSubnet reports why this node does not hold an address of its HostSubnet. version is the version of the object that the node has.
func (r *Recorder) HostSubnet(uid types.UID, version string, address netip.Addr, note string) {
	about := Object{
		Kind: "HostSubnet", APIVersion: networkv1.GroupVersion().String(), Name: r.node, UID: string(uid),
		Field: "egressIPs{" + address.String() + "}",
	}
	if !r.fresh(eventKey{about, reasonEgressIP, note}, time.Now()) {
		return // for all versions, because the agent's own writes to the status create new ones
	}
	about.Version = version
	r.warn(about, reasonEgressIP, "Program", note)
}

// Request reports a pod that cannot be attached. The kubelet also reports it, for every attempt and with the sandbox's ID, so its events
// are many and all different. This event is sent once per reason. Errors that only require waiting are not reported.
func (r *Recorder) Request(req *cni.Request, err error) {
	failure := cni.AsError(err)
	if failure == nil || req.Command != cni.CommandAdd || req.Args.PodName == "" || isWait(failure) {
		return
	}
	pod := Object{
		Kind: "Pod", APIVersion: "v1", Namespace: req.Args.PodNamespace, Name: req.Args.PodName, UID: req.Args.PodUID,
	}
	note := strings.ReplaceAll(failure.Error(), req.ContainerID, "the sandbox")
	r.warn(pod, reasonAttachFailed, "Attach", note)
	if errors.Is(err, ipam.ErrExhausted) {
		r.Node(reasonExhausted, "Attach", "", note)
	}
}

// Closed reports on a pod that its port is closed.
func (r *Recorder) Closed(rec attach.Record, why error) {
	if r == nil || rec.PodName == "" {
		return
	}
	pod := Object{Kind: "Pod", APIVersion: "v1", Namespace: rec.PodNamespace, Name: rec.PodName, UID: rec.PodUID}
	r.warn(pod, reasonClosed, "Program", r.node+": "+strings.ReplaceAll(why.Error(), rec.Key().Owner()+": ", ""))
}

// Unreadable reports on the Node the attachment records that cannot be read. closed has the reasons why ports are closed.
func (r *Recorder) Unreadable(closed map[reconcile.Owner]error) {
	for owner, why := range closed {
		if strings.HasPrefix(string(owner), RecordOwner) {
			r.Node(reasonRecord, "Attach", string(owner), why.Error())
		}
	}
}

// isWait reports whether an error says only that the node is not ready yet; the node's condition says why.
func isWait(failure *cni.Error) bool {
	return failure.Code == cni.CodeTryAgainLater && !errors.Is(failure, ipam.ErrExhausted)
}

// Drift reports on the Node that another program's change was reverted.
func (r *Recorder) Drift(event reconcile.Event) {
	if r == nil { // a dry run sends no events
		return
	}
	if event.Drift.Items() == 0 || event.Err != nil {
		return
	}
	r.Node(ReasonDrift, "Verify", event.Engine, event.Engine+": what Weft had programmed was changed, and is restored: another program changed it, or the switch restarted. "+
		"weft_engine_drift_total counts these changes; the agent's log has their times")
}

// OnObjects sends a network's events on its objects.
type OnObjects struct{ Recorder *Recorder }

// Warning implements network.Events.
func (o OnObjects) Warning(object client.Object, reason, action, note string) {
	gvk := object.GetObjectKind().GroupVersionKind()
	o.Recorder.warn(Object{
		Kind: gvk.Kind, APIVersion: gvk.GroupVersion().String(), Namespace: object.GetNamespace(), Name: object.GetName(),
		UID: string(object.GetUID()), Version: object.GetResourceVersion(),
	}, reason, action, o.Recorder.node+": "+note)
}
