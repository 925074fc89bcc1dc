package watch

import (
	"sync/atomic"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/informer"
	"weft.dev/weft/internal/realised"
	"weft.dev/weft/internal/watermark"
)

// Marks are the resourceVersions observed, by kind of object. NetNamespaces have several followers, and therefore several marks.
type Marks struct {
	byKind map[realised.Kind][]*watermark.Mark
	// changed is called when the versions may have changed. It is set before any object arrives.
	changed atomic.Pointer[func()]
}

// NewMarks returns no marks yet.
func NewMarks() *Marks { return &Marks{byKind: map[realised.Kind][]*watermark.Mark{}} }

// Of returns a new mark of a kind; nil for nil marks.
func (m *Marks) Of(kind realised.Kind) *watermark.Mark {
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

// ByKind returns the marks of a kind.
func (m *Marks) ByKind(kind realised.Kind) []*watermark.Mark { return m.byKind[kind] }

// OnChange sets the function that is called when the versions may have changed. It is set before any object arrives.
func (m *Marks) OnChange(changed func()) { m.changed.Store(&changed) }

// Came notifies the marks of an object that arrives from the API server. An informer's transform calls it: for all objects of a list before
// the first of them is reported.
func (m *Marks) Came(object any) {
	var kind realised.Kind
	switch object.(type) {
	case *networkingv1.NetworkPolicy:
		kind = realised.NetworkPolicy
	case *networkv1.EgressNetworkPolicy:
		kind = realised.EgressNetworkPolicy
	case *networkv1.NetNamespace:
		kind = realised.NetNamespace
	}
	if at, ok := ChangeOf(object); ok {
		for _, mark := range m.byKind[kind] {
			mark.Came(at.Key, at.version)
		}
	}
}

// Change is a change of an object that an informer reports.
type Change struct {
	Key     string
	version uint64
	// gone says that the object was deleted, at a version that is not known.
	gone bool
}

// ChangeOf returns the change that an informer reports.
func ChangeOf(notification any) (Change, bool) {
	_, gone := notification.(toolscache.DeletedFinalStateUnknown)
	object, ok := informer.LastState(notification).(client.Object)
	if !ok {
		return Change{}, false
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
	return Change{Key: name, version: version, gone: gone}, true
}

// Mark notifies a mark that the change was reported.
func (p Change) Mark(mark *watermark.Mark, concerns bool) {
	if p.gone {
		mark.Gone(p.Key)
		return
	}
	mark.Observed(p.Key, p.version, concerns)
}
