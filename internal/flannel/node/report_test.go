package node

import (
	"errors"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/flannel/published"
	"weft.dev/weft/internal/hostport/publish"
	"weft.dev/weft/internal/network"
)

// recorded are the records of a node.
type recorded struct {
	network.Records
	mu  sync.Mutex
	all []attach.Record
}

func (r *recorded) Attached() []attach.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}

func (r *recorded) set(all ...attach.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = all
}

// TestReportsInOrder: if a conflict about host ports ends while the network reports it, the last section reports the end.
func TestReportsInOrder(t *testing.T) {
	var recs []attach.Record
	for _, name := range []string{"a", "b"} {
		recs = append(recs, attach.Record{
			ContainerID: name, IfName: "eth0", PodNamespace: "shop", PodName: name,
			Addresses: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, 3, name[0]}), 24)},
			HostPorts: []cni.HostPort{{Port: 8080, Protocol: "tcp", ContainerPort: 80}},
		})
	}
	for range 500 {
		records := &recorded{all: recs}
		var last weftv1.NodeNetworkSection
		var mu sync.Mutex
		n := &Network{
			why: errors.New("starting"), hostPorts: publish.New(publish.Options{Compile: published.Compile(nil), IPv6: true, Attached: records.Attached}),
			opts: Options{Records: records, Report: func(section weftv1.NodeNetworkSection) {
				runtime.Gosched()
				mu.Lock()
				defer mu.Unlock()
				last = section
			}},
		}
		var reports sync.WaitGroup
		reports.Go(n.report)
		runtime.Gosched()
		records.set(recs[0])
		n.conflictsEnded()
		reports.Wait()
		if meta.IsStatusConditionFalse(last.Conditions, weftv1.NetworkHostPorts) {
			t.Fatal("a conflict that has ended is still reported")
		}
	}
}
