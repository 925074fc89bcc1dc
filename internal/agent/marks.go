package agent

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

// marks say of each kind of object how far it is in effect on this node. NetNamespaces have several followers, and so several.
type marks struct {
	// node is this node's name.
	node   string
	byKind map[realised.Kind][]*watermark.Mark
	// changed is told when they may say something else. It is set before anything comes in.
	changed atomic.Pointer[func()]
}

func newMarks() *marks { return &marks{byKind: map[realised.Kind][]*watermark.Mark{}} }

// of returns a new mark of a kind, nil from nobody.
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

// strip is an informer's transform: it sees each object when it comes in from the API server, and all of a list before the first of
// them is told.
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
	if at, ok := passageOf(object); ok {
		for _, mark := range m.byKind[kind] {
			mark.Came(at.key, at.version)
		}
	}
	if hs, ok := object.(*networkv1.HostSubnet); ok && hs.Name != m.node { // what other agents found is many times the rest
		hs.Status = networkv1.HostSubnetStatus{RefusedEgressIPs: hs.Status.RefusedEgressIPs}
	}
	return strip(object)
}

// passage is a change of an object that an informer tells of.
type passage struct {
	key     string
	version uint64
	// gone says that it is there no more, since when is not known.
	gone bool
}

// lastState returns the object that an informer tells of, of one that went unseen the last that was known.
func lastState(told any) any {
	if at, gone := told.(toolscache.DeletedFinalStateUnknown); gone {
		return at.Obj
	}
	return told
}

// passageOf returns what an informer tells of.
func passageOf(told any) (passage, bool) {
	_, gone := told.(toolscache.DeletedFinalStateUnknown)
	object, ok := lastState(told).(client.Object)
	if !ok {
		return passage{}, false
	}
	version, err := realised.Version(object.GetResourceVersion())
	key := client.ObjectKeyFromObject(object)
	name := key.Name
	if key.Namespace != "" {
		name = key.Namespace + "/" + key.Name
	}
	if err != nil {
		version = 0 // as of an object that is of no API server: nothing is said of it
	}
	return passage{key: name, version: version, gone: gone}, true
}

// tell has a mark know that it was told.
func (p passage) tell(mark *watermark.Mark, concerns bool) {
	if p.gone {
		mark.Gone(p.key)
		return
	}
	mark.Told(p.key, p.version, concerns)
}
