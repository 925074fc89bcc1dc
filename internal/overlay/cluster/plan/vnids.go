package plan

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/cluster/plan"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/ipam"
)

// VNIDState is everything that a plan of VNIDs is made from.
type VNIDState struct {
	// Mode is the kind of isolation; empty if there is no valid network. In a mode without VNIDs the plan is empty, and existing objects stay.
	Mode clusternetwork.Mode
	// Namespaces are all Namespaces.
	Namespaces []Namespace
	// NetNamespaces are all NetNamespaces. They are not modified.
	NetNamespaces []networkv1.NetNamespace
}

// VNIDPlan is what to write, and which problems there are.
type VNIDPlan struct {
	Writes[*networkv1.NetNamespace]
	// Assigns reports whether VNIDs are assigned or changed. Then the state must have been read from the API server itself: a cache may lack
	// the last assignments.
	Assigns bool
	// Problems are in a fixed order.
	Problems []Problem
}

// VNIDs plans the NetNamespaces. random chooses among free VNIDs.
func VNIDs(state VNIDState, random *rand.Rand) VNIDPlan {
	p := &vnidPlanner{
		mode:    state.Mode,
		free:    ipam.NewVNIDs(networkv1.VNIDMin, networkv1.VNIDMax, random),
		ids:     map[string]uint32{},
		holders: map[uint32]int{},
		moved:   map[string]bool{},
	}
	if !state.Mode.HasVNIDs() {
		return p.plan
	}
	netNamespaces := make([]*networkv1.NetNamespace, len(state.NetNamespaces))
	existing := make(map[string]bool, len(netNamespaces))
	for i := range state.NetNamespaces {
		nn := &state.NetNamespaces[i]
		netNamespaces[i] = nn
		existing[nn.Name] = true
		p.free.Use(nn.NetID)
		p.ids[nn.Name] = nn.NetID
		p.holders[nn.NetID]++
	}
	namespaces := make(map[string]Namespace, len(state.Namespaces))
	for _, ns := range state.Namespaces {
		namespaces[ns.Name] = ns
	}
	for _, nn := range plan.ByAge(netNamespaces, func(nn *networkv1.NetNamespace) (time.Time, string) {
		return nn.CreationTimestamp.Time, nn.Name
	}) {
		p.existing(nn, namespaces[nn.Name])
	}
	for _, ns := range plan.ByAge(state.Namespaces, func(ns Namespace) (time.Time, string) { return ns.Created, ns.Name }) {
		if !existing[ns.Name] {
			p.create(ns)
		}
	}
	return p.plan
}

type vnidPlanner struct {
	mode    clusternetwork.Mode
	free    *ipam.VNIDs
	ids     map[string]uint32 // the VNID of each namespace, as planned so far
	holders map[uint32]int    // how many namespaces have each VNID, as planned so far; free gets none back before it is written
	moved   map[string]bool   // namespaces whose VNID this plan changes
	plan    VNIDPlan
}

func (p *vnidPlanner) problem(about Object, reason, format string, args ...any) {
	p.plan.Problems = append(p.plan.Problems, Problem{Object: about, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

func (p *vnidPlanner) create(ns Namespace) {
	id := networkv1.VNIDGlobal
	if ns.Name != networkv1.NamespaceDefault {
		var err error
		if id, err = p.free.Allocate(); err != nil {
			p.problem(about(KindNamespace, ns.Name, ns.UID), networkv1.ReasonExhausted, "no VNID for namespace %s: %v: remove namespaces, or join some", ns.Name, err)
			return
		}
	}
	p.plan.Assigns = true
	p.plan.Create = append(p.plan.Create, &networkv1.NetNamespace{
		ObjectMeta: metav1.ObjectMeta{
			Name:        ns.Name,
			Annotations: map[string]string{networkv1.AnnotationNamespaceUID: string(ns.UID)},
		},
		NetName: ns.Name,
		NetID:   id,
	})
}

// existing plans a NetNamespace; ns is zero if its Namespace does not exist.
func (p *vnidPlanner) existing(nn *networkv1.NetNamespace, ns Namespace) {
	made := nn.Annotations[networkv1.AnnotationNamespaceUID]
	if made != "" && made != string(ns.UID) {
		p.moved[nn.Name] = true
		p.plan.Delete = append(p.plan.Delete, nn) // if there is a new Namespace of that name, the next plan creates a new one
		return
	}
	if ns.Name == "" {
		return // created by an administrator, before its Namespace
	}
	if nn.NetName != nn.Name || nn.NetID > networkv1.VNIDMax {
		p.problem(about(KindNetNamespace, nn.Name, nn.UID), networkv1.ReasonInvalid,
			"NetNamespace %q: netname must equal metadata.name, and netid be 0 to %d: delete it, a new one is made", nn.Name, networkv1.VNIDMax)
		return
	}
	want := nn.DeepCopy()
	annotate(want, networkv1.AnnotationNamespaceUID, string(ns.UID))
	if request, ok := nn.Annotations[networkv1.AnnotationChangeNetwork]; ok {
		p.change(want, request)
	}
	if want.NetID != nn.NetID {
		p.holders[nn.NetID]--
		p.holders[want.NetID]++
		p.ids[nn.Name], p.moved[nn.Name], p.plan.Assigns = want.NetID, true, true
	}
	if want.NetID != nn.NetID || !sameAnnotations(nn.Annotations, want.Annotations) {
		p.plan.Update = append(p.plan.Update, want)
	}
	if p.mode == clusternetwork.ModeNetworkPolicy && want.NetID != networkv1.VNIDGlobal && p.holders[want.NetID] > 1 {
		p.problem(about(KindNetNamespace, nn.Name, nn.UID), networkv1.ReasonConflict,
			"netid %d of NetNamespace %s is also another's, and policies cannot distinguish them: delete all but one of them, new ones are made", want.NetID, nn.Name)
	}
}

// errLater is returned for a request that depends on another one in the same plan.
var errLater = errors.New("depends on a change in progress")

// change does what the annotation requests, and removes it in the same update. A request that cannot be met yet stays.
func (p *vnidPlanner) change(nn *networkv1.NetNamespace, request string) {
	if p.mode != clusternetwork.ModeMultitenant {
		p.problem(about(KindNetNamespace, nn.Name, nn.UID), networkv1.ReasonInvalid,
			"annotation %s removed: VNIDs change only with plugin %s", networkv1.AnnotationChangeNetwork, networkv1.PluginMultitenant)
		delete(nn.Annotations, networkv1.AnnotationChangeNetwork)
		return
	}
	id, err := p.requested(nn, request)
	switch {
	case errors.Is(err, errLater):
		return
	case err != nil:
		reason := networkv1.ReasonInvalid
		if errors.Is(err, ipam.ErrExhausted) {
			reason = networkv1.ReasonExhausted
		}
		p.problem(about(KindNetNamespace, nn.Name, nn.UID), reason, "annotation %s: %.80q cannot be done: %v", networkv1.AnnotationChangeNetwork, request, err)
		return
	}
	nn.NetID = id
	delete(nn.Annotations, networkv1.AnnotationChangeNetwork)
}

// requested returns the VNID that results from a request.
func (p *vnidPlanner) requested(nn *networkv1.NetNamespace, request string) (uint32, error) {
	target, join := strings.CutPrefix(request, networkv1.ChangeJoinPrefix)
	switch {
	case request == networkv1.ChangeGlobal:
		return networkv1.VNIDGlobal, nil
	case nn.Name == networkv1.NamespaceDefault: // all namespaces use it
		return 0, fmt.Errorf("namespace %s stays global", nn.Name)
	case request == networkv1.ChangeIsolate && p.holders[nn.NetID] == 1 && nn.NetID != networkv1.VNIDGlobal:
		return nn.NetID, nil
	case request == networkv1.ChangeIsolate:
		return p.free.Allocate() //nolint:wrapcheck // says everything
	case join && len(validation.IsDNS1123Label(target)) > 0:
		return 0, fmt.Errorf("%.64q is not a namespace's name: write %s<namespace>", target, networkv1.ChangeJoinPrefix)
	case join && p.moved[target]:
		return 0, errLater
	case join:
		id, ok := p.ids[target]
		if !ok {
			return 0, fmt.Errorf("there is no NetNamespace %.64q: it is joined when there is", target)
		}
		return id, nil
	}
	return 0, fmt.Errorf("write %s, %s or %s<namespace>", networkv1.ChangeGlobal, networkv1.ChangeIsolate, networkv1.ChangeJoinPrefix)
}
