package agent

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes/fake"

	"weft.dev/weft/internal/agent/events"
	"weft.dev/weft/internal/keep"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/testwait"
)

// What another program changed of the node, and the keeper restored or could not restore, is an event of the Node that names it: one for each
// part.
func TestKeptIsReported(t *testing.T) {
	clients := clientset.NewClientset()
	recorder, err := events.New(t.Context(), clients, "n1", metrics.NewAgent("v"))
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{opts: Options{Log: slog.New(slog.DiscardHandler)}, events: recorder}
	a.reportKept(keep.Thing{Name: "sysctls"}, "net.ipv4.ip_forward", nil)
	a.reportKept(keep.Thing{Name: "socket /run/weft/cni/cni.sock"}, "/run/weft/cni/cni.sock", nil)
	a.reportKept(keep.Thing{Name: "CNI configuration"}, "", errors.New("read-only file system"))
	a.reportKept(keep.Thing{Name: "CNI configuration"}, "10-weft.conflist", nil)
	var notes []string
	testwait.Until(t, "each is reported", func() bool {
		list, err := clients.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		notes = nil
		for i := range list.Items {
			if e := &list.Items[i]; e.Regarding.Kind == "Node" && e.Regarding.Name == "n1" && e.Reason == events.ReasonDrift {
				notes = append(notes, e.Note)
			}
		}
		return len(notes) == 4
	})
	for _, words := range []string{
		"sysctls: changed or removed by another program; put back: net.ipv4.ip_forward", "put back: /run/weft/cni/cni.sock",
		"CNI configuration: changed by another program, and it cannot be put back: read-only", "put back: 10-weft.conflist",
	} {
		if !slices.ContainsFunc(notes, func(note string) bool { return strings.Contains(note, words) }) {
			t.Errorf("no event with %q in %q", words, notes)
		}
	}
}
