//go:build real

package bridge_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/openflow/oxm"
)

const benchFlows = 50_000

// manyFlows returns flows like those that policies compile to: an address, a register, a conjunction.
func manyFlows(n int) map[openflow.Key]openflow.Entry {
	entries := make(map[openflow.Key]openflow.Entry, n)
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		f := &openflow.Flow{
			Table: 80, Priority: 100, Cookie: uint64(i),
			Match:   oxm.NewMatch(oxm.IPSrc(netip.PrefixFrom(a, 32)), oxm.Reg(1, 77)),
			Actions: action.Actions{action.Conjunction(uint32(i%500+1), 1, 2)},
		}
		entries[f.Key()] = f
	}
	return entries
}

// vswitchdCPU is the processor time of the switch in clock ticks of 10 ms.
func vswitchdCPU(b *testing.B, s *ovstest.Switch) float64 {
	b.Helper()
	pid, err := os.ReadFile(filepath.Join(s.RunDir, "ovs-vswitchd.pid"))
	if err != nil {
		b.Fatal(err)
	}
	stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(stat))
	user, _ := strconv.ParseFloat(fields[13], 64)
	system, _ := strconv.ParseFloat(fields[14], 64)
	return (user + system) * 10e6 // ns
}

// BenchmarkCommit compares one bundle of 50,000 flows with bundles of the default size, and both with ovs-ofctl's own
// bundle of the same flows.
func BenchmarkCommit(b *testing.B) {
	entries := manyFlows(benchFlows)
	run := func(b *testing.B, commit func(b *testing.B, s *ovstest.Switch, br string)) {
		b.Helper()
		cpu := 0.0
		for b.Loop() {
			b.StopTimer()
			s := ovstest.Start(b)
			br := s.Name("br")
			s.AddBridge(br)
			before := vswitchdCPU(b, s)
			b.StartTimer()
			commit(b, s, br)
			b.StopTimer()
			cpu = (vswitchdCPU(b, s) - before) / benchFlows
			s.Stop("ovs-vswitchd", true)
			b.StartTimer()
		}
		b.ReportMetric(cpu, "switch-ns/flow")
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchFlows, "ns/flow")
	}
	for name, size := range map[string]int{"default bundles": 0, "one bundle": benchFlows} {
		b.Run(name, func(b *testing.B) {
			run(b, func(b *testing.B, s *ovstest.Switch, br string) {
				b.Helper()
				engine := bridge.NewEngine(bridge.Config{Address: s.Mgmt(br), BundleSize: size})
				inBackground(b, engine.Run)
				if err := engine.Commit(context.Background(), bridge.Change{Set: entries}); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
	b.Run("ovs-ofctl bundle", func(b *testing.B) {
		file := filepath.Join(b.TempDir(), "flows")
		if err := os.WriteFile(file, []byte(openflow.Text(entries)), 0o600); err != nil {
			b.Fatal(err)
		}
		run(b, func(b *testing.B, s *ovstest.Switch, br string) {
			b.Helper()
			s.OFCtl("--bundle", "add-flows", s.Mgmt(br), file)
		})
	})
}

func BenchmarkRead(b *testing.B) {
	s := ovstest.Start(b)
	br := s.Name("br")
	s.AddBridge(br)
	engine := bridge.NewEngine(bridge.Config{Address: s.Mgmt(br)})
	inBackground(b, engine.Run)
	entries := manyFlows(benchFlows)
	if err := engine.Commit(b.Context(), bridge.Change{Set: entries}); err != nil {
		b.Fatal(err)
	}
	b.Run("engine", func(b *testing.B) {
		for b.Loop() {
			if got, err := engine.Read(b.Context()); err != nil || len(got) != benchFlows {
				b.Fatalf("%d flows, %v", len(got), err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchFlows, "ns/flow")
	})
	b.Run("ovs-ofctl", func(b *testing.B) {
		for b.Loop() {
			s.OFCtl("dump-flows", s.Mgmt(br))
		}
	})
	small := &openflow.Flow{Table: 20, Priority: 5}
	b.Run("commit of six flows beside", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			change := bridge.Change{Set: map[openflow.Key]openflow.Entry{}}
			for p := range uint16(6) {
				f := *small
				f.Priority, f.Cookie = p, uint64(i)
				change.Set[f.Key()] = &f
			}
			if err := engine.Commit(b.Context(), change); err != nil {
				b.Fatal(err)
			}
		}
	})
}
