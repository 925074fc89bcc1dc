package policy_test

import (
	"fmt"
	"runtime"
	"testing"

	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/policytest"
)

func ownPods() *policytest.Cluster { return policytest.OneNamespace(false) }

func allPods() *policytest.Cluster { return policytest.OneNamespace(true) }

// BenchmarkCompute computes everything from a cluster's objects, as an agent does when it starts.
func BenchmarkCompute(b *testing.B) {
	for _, size := range []struct {
		name string
		make func() *policytest.Cluster
	}{
		{"policies=10k/pods=10k/namespaces=1/own-pods", ownPods},
		{"policies=10k/pods=10k/namespaces=1/all-pods", allPods},
		{"policies=75k/pods=100k/namespaces=25k", policytest.ManyNamespaces},
	} {
		b.Run(size.name, func(b *testing.B) {
			c := size.make()
			before := heap()
			var x *policy.Index
			for b.Loop() {
				var err error
				if x, err = c.Index(""); err != nil {
					b.Fatal(err)
				}
				rules, members, isolated := c.Read(x)
				b.ReportMetric(float64(rules), "rules")
				b.ReportMetric(float64(members), "members")
				b.ReportMetric(float64(isolated), "isolated")
			}
			b.ReportMetric(float64(heap()-before)/(1<<20), "MiB-held")
			runtime.KeepAlive(x)
		})
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkChange changes one pod, or one policy, of a large cluster.
func BenchmarkChange(b *testing.B) {
	for name, c := range map[string]*policytest.Cluster{"one-namespace": ownPods(), "one-namespace-all-pods": allPods(), "many-namespaces": policytest.ManyNamespaces()} {
		x, err := c.Index("node1")
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("%s/pod", name), func(b *testing.B) {
			p := c.Pods[77]
			for b.Loop() {
				x.DeletePod(p.Key)
				x.SetPod(p)
			}
		})
		b.Run(fmt.Sprintf("%s/policy", name), func(b *testing.B) {
			p, err := policy.FromNetworkPolicy(c.Policies[77])
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				x.DeletePolicy(p.Key)
				x.SetPolicy(p)
				x.Rules(p.Key)
			}
		})
	}
}
