// Package hostsubnet writes the status of this node's HostSubnet: what the node's engines hold, what is in effect, and what is in the way. It
// also keeps the tunnels' port, which the HostSubnet fixes.
package hostsubnet

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	networkv1 "weft.dev/weft/api/openshift/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/steps"
)

// Minimum intervals between writes of the status. Every agent watches all HostSubnets, so a write is an event for all of them. Failures are
// reported at once, numbers are gathered. Without changes, nothing is written.
const (
	urgentRest = 5 * time.Second
	numberRest = time.Minute
	// What is realised changes with each object, on all nodes at once. So nodes write in turn, on average markTurn apart, whatever their
	// number. Each node writes the first marksInRow changes as soon as urgentRest allows. If objects change permanently, it then writes only
	// so often that the API server sends one event every markEvent; each write is one event for every node.
	markTurn   = 60 * time.Millisecond
	markEvent  = 5 * time.Millisecond
	markGather = 250 * time.Millisecond
	marksInRow = 4
	// lookRest is the minimum interval between two comparisons of the status.
	lookRest = time.Second
)

// Limits on the contents of a status.
const (
	maxFailures   = 10
	maxMessage    = 1024 // bytes
	maxExceptions = 20
	maxException  = 256 // bytes
)

// writeTimeout bounds a write, so that an API server that does not answer does not block the agent.
const writeTimeout = 5 * time.Second

// fieldManager names the agent as the owner of its part of the status.
const fieldManager = "weft-agent"

// Writer keeps the status of this node's HostSubnet up to date.
type Writer struct {
	// state returns the agent's state. subnet returns the object as cached, nil if there is none. apply writes its status.
	state  func(context.Context) admin.State
	subnet func(context.Context) (*networkv1.HostSubnet, error)
	apply  func(context.Context, *networkv1.HostSubnet) error
	log    *slog.Logger
	now    func() time.Time
	wake   chan struct{}
	// report reports the overlay in the node's NodeNetwork.
	report func(weftv1.NodeNetworkSection)
	// nodes returns the number of nodes that receive each write.
	nodes func(context.Context) int
	// written is the time of the last attempt to write; begun, before any attempt, is when there was first something to write. soon is the
	// time of the last attempt that was urgent or for a number: writes of what is realised do not delay those.
	written, soon, begun time.Time
	// failed says that it is unknown whether the API server applied the last write.
	failed bool
	// behind is the time since which the reported and the actual resourceVersions observed differ; zero if they do not. spent are the times of
	// recent writes of them.
	behind time.Time
	spent  []time.Time
}

// Changed triggers a comparison of the status with the agent's state.
func (w *Writer) Changed() { steps.Wake(w.wake) }

// Run writes the status until ctx ends, and then reports that the agent has stopped.
func (w *Writer) Run(ctx context.Context) error {
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			w.stopped(context.WithoutCancel(ctx))
			return nil
		case <-w.wake:
		case <-due:
		}
		due = nil
		if wait, again := w.look(ctx); again {
			due = time.After(wait)
		}
		rest := time.NewTimer(lookRest)
		select {
		case <-rest.C:
		case <-ctx.Done():
			rest.Stop()
		}
	}
}

// look writes the status if it is due, and returns when to look again even if nothing changes.
func (w *Writer) look(ctx context.Context) (wait time.Duration, again bool) {
	have, err := w.subnet(ctx)
	if err != nil || have == nil {
		return 0, false // the Node's condition reports this; once the HostSubnet exists, that is a change
	}
	state := w.state(ctx)
	now := w.now()
	want := statusOf(&state, have, now)
	difference := compareStatus(&have.Status, &want)
	if difference == alike && w.failed {
		difference = exceptionsDiffer // the API server may have applied this write, or an earlier one
	}
	if difference == alike {
		w.behind = time.Time{}
		w.report(overlaySection(&state))
		return 0, false
	}
	rest, turn := w.rest(ctx, difference, have.Name, now)
	last := w.written
	if difference == urgent {
		last = w.soon
	}
	if last.IsZero() && !state.Ready {
		// An agent that starts gets a short delay: what it waits for is reported only if it still waits.
		if w.begun.IsZero() {
			w.begun = now
		}
		last = w.begun
	}
	if left := max(last.Add(rest).Sub(now), turn); left > 0 {
		return left, true
	}
	w.written, w.behind = now, time.Time{}
	w.report(overlaySection(&state))
	switch difference {
	case marksDiffer:
		w.spent = append(w.spent, now)
	case urgent, numbersDiffer:
		w.soon = now
	}
	err = w.write(ctx, have, want)
	w.failed = err != nil
	if err != nil {
		if ctx.Err() == nil {
			w.log.Warn("writing the status of this node's HostSubnet, trying again", "error", err)
		}
		return urgentRest, true
	}
	return 0, false
}

// rest returns the minimum delay between the last write and the write of a difference, and the minimum delay from now.
func (w *Writer) rest(ctx context.Context, difference difference, node string, now time.Time) (rest, turn time.Duration) {
	if difference == urgent {
		return urgentRest, 0
	}
	if difference == numbersDiffer {
		return numberRest, 0
	}
	if w.behind.IsZero() {
		w.behind = now
	}
	nodes := w.nodes(ctx)
	turn = w.behind.Add(turnOf(node, nodes)).Sub(now)
	if difference == exceptionsDiffer {
		return urgentRest, turn
	}
	steady := steadyRest(nodes)
	for len(w.spent) > 0 && now.Sub(w.spent[0]) >= marksInRow*max(steady, numberRest) {
		w.spent = w.spent[1:]
	}
	if len(w.spent) < marksInRow {
		return urgentRest, turn
	}
	return steady, turn
}

// steadyRest is the interval between a node's writes while objects change permanently. nodes is 0 if their number is unknown.
func steadyRest(nodes int) time.Duration {
	if nodes == 0 {
		return numberRest
	}
	return min(max(urgentRest, time.Duration(nodes*nodes)*markEvent), max(numberRest, spread(nodes)))
}

// spread is the time over which the nodes spread their writes after the same change.
func spread(nodes int) time.Duration { return time.Duration(nodes) * markTurn }

// turnOf returns the delay between a change that all nodes receive and a node's write of it. Each node has its own.
func turnOf(node string, nodes int) time.Duration {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(node)) // Write never fails
	return markGather + time.Millisecond*time.Duration(spread(nodes).Milliseconds()*int64(hash.Sum32())>>32)
}

// overlaySection returns the overlay's section of the node's NodeNetwork. The HostSubnet has more details.
func overlaySection(state *admin.State) weftv1.NodeNetworkSection {
	ready, step := readyCondition(state), inStepCondition(state)
	step.Type = weftv1.NetworkInStep
	section := weftv1.NodeNetworkSection{Name: weftv1.NetworkOverlay, Conditions: []metav1.Condition{ready, step}, Facts: map[string]string{}}
	for name, value := range map[string]string{"weft": state.Version, "openVSwitch": state.OpenVSwitch, "kernel": state.Kernel, "datapath": state.Datapath} {
		if value != "" {
			section.Facts[name] = bounded(value, maxException)
		}
	}
	return section
}

// stopped reports that the agent has stopped, so the status is no longer updated.
func (w *Writer) stopped(ctx context.Context) {
	have, err := w.subnet(ctx)
	if err != nil || have == nil || meta.FindStatusCondition(have.Status.Conditions, networkv1.ConditionReady) == nil {
		return
	}
	want := *have.Status.DeepCopy()
	meta.SetStatusCondition(&want.Conditions, metav1.Condition{
		Type: networkv1.ConditionReady, Status: metav1.ConditionFalse, Reason: networkv1.ReasonStopped, ObservedGeneration: have.Generation,
		Message: "the agent was stopped: pods go on, none is added, and nothing is put back until it runs again",
	})
	want.Conditions = agentConditions(want.Conditions)
	if err := w.write(ctx, have, want); err != nil {
		w.log.Debug("reporting in the HostSubnet that the agent stops failed", "error", err) // the pod's status shows it too
	}
}

func (w *Writer) write(ctx context.Context, have *networkv1.HostSubnet, status networkv1.HostSubnetStatus) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return w.apply(ctx, &networkv1.HostSubnet{
		TypeMeta:   metav1.TypeMeta{APIVersion: networkv1.GroupVersion().String(), Kind: "HostSubnet"},
		ObjectMeta: metav1.ObjectMeta{Name: have.Name, UID: have.UID}, // with the UID, the write is refused for another object of the same name
		Status:     status,
	})
}

// agentConditions returns the conditions that the agent owns.
func agentConditions(all []metav1.Condition) []metav1.Condition {
	var own []metav1.Condition
	for _, c := range all {
		if c.Type != networkv1.ConditionValid {
			own = append(own, c)
		}
	}
	return own
}

// statusOf returns the agent's part of the status.
func statusOf(state *admin.State, have *networkv1.HostSubnet, now time.Time) networkv1.HostSubnetStatus {
	status := networkv1.HostSubnetStatus{
		Versions: networkv1.HostSubnetVersions{
			Weft: state.Version, OpenVSwitch: state.OpenVSwitch, Kernel: state.Kernel, Datapath: state.Datapath,
		},
		Attachments: int32(state.Attachments),                                                                            //nolint:gosec // a node has thousands
		Addresses:   networkv1.HostSubnetAddresses{Used: int32(state.AddressesUsed), Total: int32(state.AddressesTotal)}, //nolint:gosec // likewise
		Conditions:  agentConditions(have.DeepCopy().Status.Conditions),

		VNIDsVersion: state.VNIDsVersion, VXLANPorts: portNumbers(state.VXLANPorts),
	}
	if state.VXLANPorts == nil {
		status.VXLANPorts = have.DeepCopy().Status.VXLANPorts
	}
	if state.RefusedEgressIPs == nil {
		status.RefusedEgressIPs = have.DeepCopy().Status.RefusedEgressIPs
	}
	for _, ip := range lowest(state.RefusedEgressIPs) {
		status.RefusedEgressIPs = append(status.RefusedEgressIPs,
			networkv1.HostSubnetRefusedEgressIP{IP: ip, Reason: bounded(state.RefusedEgressIPs[ip], maxException)})
	}
	if !state.RealisedKnown {
		status.Realised = have.DeepCopy().Status.Realised
	}
	for i := range state.Realised {
		status.Realised = append(status.Realised, realisedStatus(&state.Realised[i]))
	}
	for i := range state.Engines {
		status.Engines = append(status.Engines, engineStatus(&state.Engines[i]))
	}
	for _, c := range []metav1.Condition{readyCondition(state), inStepCondition(state), unobstructedCondition(state)} {
		c.ObservedGeneration, c.LastTransitionTime = have.Generation, metav1.NewTime(now)
		c.Message = bounded(c.Message, maxMessage)
		meta.SetStatusCondition(&status.Conditions, c)
	}
	return status
}

// lowest returns the refused egress IPs for which the status has room, in order. These are the lowest: if the room is used up, every address
// above the highest of them counts as refused (clusternetwork.RefusedAbove).
func lowest(refused map[string]string) []string {
	number := func(text string) netip.Addr {
		ip, _ := netip.ParseAddr(text) // made from an address
		return ip
	}
	ips := slices.SortedFunc(maps.Keys(refused), func(a, b string) int { return number(a).Compare(number(b)) })
	return ips[:min(len(ips), networkv1.MaxRefusedEgressIPs)]
}

func bounded(message string, most int) string {
	if len(message) <= most {
		return message
	}
	return strings.ToValidUTF8(message[:most], "") + " ..."
}

func realisedStatus(r *admin.Realised) networkv1.HostSubnetRealised {
	reported := networkv1.HostSubnetRealised{Kind: r.Kind, Version: r.Version, Reason: bounded(r.Reason, maxMessage)}
	objects := slices.Sorted(maps.Keys(r.Exceptions))
	for _, object := range objects[:min(len(objects), maxExceptions)] {
		reported.Exceptions = append(reported.Exceptions, networkv1.HostSubnetException{Object: object, Reason: bounded(r.Exceptions[object], maxException)})
	}
	reported.More = int32(len(objects) - len(reported.Exceptions)) //nolint:gosec // bounded by memory
	return reported
}

func engineStatus(e *admin.Engine) networkv1.HostSubnetEngine {
	reported := networkv1.HostSubnetEngine{Name: e.Name, InStep: len(e.Failures) == 0, Items: int32(e.Items), Hash: e.Hash} //nolint:gosec // bounded by memory
	if e.Committed != nil {
		at := metav1.NewTime(e.Committed.Truncate(time.Second)) // the API has a resolution of one second
		reported.LastCommit = &at
	}
	for _, f := range e.Failures[:min(len(e.Failures), maxFailures)] {
		reported.Failures = append(reported.Failures, bounded(f.String(), maxMessage))
	}
	return reported
}

func readyCondition(state *admin.State) metav1.Condition {
	if !state.Ready {
		return metav1.Condition{
			Type: networkv1.ConditionReady, Status: metav1.ConditionFalse, Reason: networkv1.ReasonNotServing, Message: state.Waiting,
		}
	}
	return metav1.Condition{
		Type: networkv1.ConditionReady, Status: metav1.ConditionTrue, Reason: networkv1.ReasonServing, Message: "the agent serves this node's pods",
	}
}

// inStepCondition reports what is not programmed. Items that wait for the next commit are not failures.
func inStepCondition(state *admin.State) metav1.Condition {
	c := metav1.Condition{Type: networkv1.ConditionEnginesInStep, Status: metav1.ConditionFalse, Reason: networkv1.ReasonFailing}
	failures, first := 0, ""
	for _, e := range state.Engines {
		for _, f := range e.Failures {
			if failures++; failures == 1 {
				first = e.Name + ": " + f.String()
			}
		}
	}
	switch {
	case failures == 1:
		c.Message = "not programmed: " + first
	case failures > 1:
		c.Message = fmt.Sprintf("%d objects are not programmed; the first: %s", failures, first)
	case state.Refused != "":
		c.Reason, c.Message = networkv1.ReasonRefused, "the node stays as it was: "+state.Refused
	case len(state.Engines) == 0:
		c.Reason, c.Message = networkv1.ReasonNotServing, state.Waiting
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, networkv1.ReasonInStep, "all that is desired is programmed"
	}
	return c
}

func unobstructedCondition(state *admin.State) metav1.Condition {
	c := metav1.Condition{Type: networkv1.ConditionUnobstructed, Status: metav1.ConditionTrue, Reason: networkv1.ReasonOpen}
	switch {
	case len(state.Warnings) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, networkv1.ReasonObstructed, strings.Join(state.Warnings, "; ")
		if len(state.Leftovers) > 0 {
			c.Message += "; " + leftoversText(state.Leftovers)
		}
	case len(state.Leftovers) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, networkv1.ReasonLeftovers, leftoversText(state.Leftovers)
	}
	return c
}

// difference is the kind of difference between two states of a status. It determines how soon the status is written.
type difference int

const (
	alike difference = iota
	// numbersDiffer: only numbers differ.
	numbersDiffer
	// marksDiffer: only numbers and the resourceVersions observed differ.
	marksDiffer
	// exceptionsDiffer: the objects that are not realised differ, or the reasons; nothing else that is urgent does.
	exceptionsDiffer
	urgent
)

// compareStatus returns how the agent's part of a status differs from the wanted one.
func compareStatus(have, want *networkv1.HostSubnetStatus) difference {
	mine := have.DeepCopy()
	mine.Conditions = agentConditions(mine.Conditions)
	if equality.Semantic.DeepEqual(mine, want) {
		return alike
	}
	a, b := withoutNumbers(mine), withoutNumbers(want)
	if !equality.Semantic.DeepEqual(a, b) {
		a.Realised, b.Realised = nil, nil
		if equality.Semantic.DeepEqual(a, b) {
			return exceptionsDiffer
		}
		return urgent
	}
	if !equality.Semantic.DeepEqual(mine.Realised, want.Realised) {
		return marksDiffer
	}
	return numbersDiffer
}

// withoutNumbers returns a status without the numbers that need not be written at once.
func withoutNumbers(status *networkv1.HostSubnetStatus) *networkv1.HostSubnetStatus {
	s := status.DeepCopy()
	s.Attachments, s.Addresses = 0, networkv1.HostSubnetAddresses{}
	for i := range s.Engines {
		s.Engines[i].Items, s.Engines[i].Hash, s.Engines[i].LastCommit = 0, "", nil
	}
	for i := range s.Realised {
		if s.Realised[i].Version != "" { // no version at all is more than a number
			s.Realised[i].Version = "0"
		}
	}
	return s
}

// Options are the options of a Writer. All are required.
type Options struct {
	Config *rest.Config
	Log    *slog.Logger
	// State returns the agent's state.
	State func(context.Context) admin.State
	// Own returns this node's HostSubnet as cached, nil if there is none, and Hosts the number of nodes that receive each write.
	Own   func(context.Context) (*networkv1.HostSubnet, error)
	Hosts func(context.Context) int
	// Report reports the overlay in the node's NodeNetwork.
	Report func(weftv1.NodeNetworkSection)
}

// New returns a writer of the status of one HostSubnet.
func New(options Options) (*Writer, error) {
	clients, err := dynamic.NewForConfig(options.Config)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	resource := clients.Resource(networkv1.GroupVersion().WithResource("hostsubnets"))
	return &Writer{
		state: options.State, log: options.Log, now: time.Now, wake: make(chan struct{}, 1),
		subnet: options.Own, nodes: options.Hosts, report: options.Report,
		apply: func(ctx context.Context, object *networkv1.HostSubnet) error {
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
			if err != nil {
				return fmt.Errorf("HostSubnet %s: %w", object.Name, err)
			}
			for _, field := range []string{"host", "hostIP", "subnet"} { // the spec belongs to the controller
				delete(content, field)
			}
			delete(content["metadata"].(map[string]any), "creationTimestamp") //nolint:forcetypeassert // ObjectMeta is always one
			_, err = resource.ApplyStatus(ctx, object.Name, &unstructured.Unstructured{Object: content},
				metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
			if err != nil {
				return fmt.Errorf("status of HostSubnet %s: %w", object.Name, err)
			}
			return nil
		},
	}, nil
}

func portNumbers(ports []uint16) []int32 {
	var numbers []int32
	for _, port := range ports {
		numbers = append(numbers, int32(port))
	}
	return numbers
}

// leftoversText joins leftovers into one message.
func leftoversText(all []string) string { return "left from OpenShift SDN: " + strings.Join(all, "; ") }
