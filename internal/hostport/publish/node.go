package publish

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link/conntrack"
)

// Own is the conntrack of the caller's network namespace. It opens a socket for each flush, so that there is nothing to close.
type Own struct{}

// FlushTo implements Tracked.
func (Own) FlushTo(protocol uint8, ports ...netip.AddrPort) error {
	return flush(func(c *conntrack.Table) error { return c.FlushTo(protocol, ports...) })
}

// FlushTranslatedTo implements Tracked.
func (Own) FlushTranslatedTo(addresses ...netip.Addr) error {
	return flush(func(c *conntrack.Table) error { return c.FlushTranslatedTo(addresses...) })
}

func flush(do func(*conntrack.Table) error) error {
	tracked, err := conntrack.New("")
	if err != nil {
		return err //nolint:wrapcheck // it says what failed
	}
	defer tracked.Close()
	return do(tracked)
}

// reasonClosed is the reason of the events on pods that lack a host port.
const reasonClosed = "HostPortClosed"

// Events sends events to the users of an object: network.Events.
type Events interface {
	Warning(object client.Object, reason, action, note string)
}

// Warnings returns a function for Options.Conflict that sends an event on the pod; nil without events.
func Warnings(events Events) func(rec *attach.Record, why error) {
	if events == nil {
		return nil
	}
	return func(rec *attach.Record, why error) {
		events.Warning(&corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: rec.PodNamespace, Name: rec.PodName, UID: types.UID(rec.PodUID)},
		}, reasonClosed, "Publish", why.Error())
	}
}
