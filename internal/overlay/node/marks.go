package node

import (
	"sync/atomic"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/realised"
	"weft.dev/weft/internal/watermark"
)

// marks are the resourceVersions observed, by kind of object. NetNamespaces have several followers, and therefore several marks.
type marks struct {
	// node is this node's name.
	node   string
	byKind map[realised.Kind][]*watermark.Mark
	// changed is called when the versions may have changed. It is set before any object arrives.
	changed atomic.Pointer[func()]
}

func newMarks() *marks { return &marks{byKind: map[realised.Kind][]*watermark.Mark{}} }

// of returns a new mark of a kind; nil for nil marks.
func (m *marks) of(kind realised.Kind) *watermark.Mark {
	if m == nil {
		return nil
	}
	mark := watermark.New(time.Now, func() {
		if changed := m.changed.Load(); changed != nil {
			(*changed)()
		}
	})
	m.byKind[kind] = append(m.byKind[kind], mark)
	return mark
}

// strip is an informer's transform. It is called for each object that arrives from the API server, and for all objects of a list before the
// first of them is reported.
func (m *marks) strip(object any) (any, error) {
	var kind realised.Kind
	switch object.(type) {
	case *networkingv1.NetworkPolicy:
		kind = realised.NetworkPolicy
	case *networkv1.EgressNetworkPolicy:
		kind = realised.EgressNetworkPolicy
	case *networkv1.NetNamespace:
		kind = realised.NetNamespace
	}
	if at, ok := changeOf(object); ok {
		for _, mark := range m.byKind[kind] {
			mark.Came(at.key, at.version)
		}
	}
	if hs, ok := object.(*networkv1.HostSubnet); ok && hs.Name != m.node { // the statuses of other nodes are many times larger than the rest
		hs.Status = networkv1.HostSubnetStatus{RefusedEgressIPs: hs.Status.RefusedEgressIPs}
	}
	return strip(object)
}

// change is a change of an object that an informer reports.
type change struct {
	key     string
	version uint64
	// gone says that the object was deleted, at a version that is not known.
	gone bool
}

// lastState returns the object that an informer reports; for a deletion that the watch missed, the last known state.
func lastState(notification any) any {
	if at, gone := notification.(toolscache.DeletedFinalStateUnknown); gone {
		return at.Obj
	}
	return notification
}

// changeOf returns the change that an informer reports.
func changeOf(notification any) (change, bool) {
	_, gone := notification.(toolscache.DeletedFinalStateUnknown)
	object, ok := lastState(notification).(client.Object)
	if !ok {
		return change{}, false
	}
	version, err := realised.Version(object.GetResourceVersion())
	key := client.ObjectKeyFromObject(object)
	name := key.Name
	if key.Namespace != "" {
		name = key.Namespace + "/" + key.Name
	}
	if err != nil {
		version = 0 // an object that is not from an API server has no valid version, and does not count
	}
	return change{key: name, version: version, gone: gone}, true
}

// mark notifies a mark that the change was reported.
func (p change) mark(mark *watermark.Mark, concerns bool) {
	if p.gone {
		mark.Gone(p.key)
		return
	}
	mark.Observed(p.key, p.version, concerns)
}
