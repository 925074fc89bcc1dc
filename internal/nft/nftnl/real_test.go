//go:build real

package nftnl_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/reconcile/enginetest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newEngine returns an engine for the table "weft" in a namespace.
func newEngine(t testing.TB, space ns.NetNS) *nftnl.Engine {
	t.Helper()
	e, err := nftnl.NewEngine(nftnl.Options{Netns: fmt.Sprintf("/proc/self/fd/%d", space.Fd()), Family: nftnl.FamilyInet, Table: "weft"})
	must(t, err)
	t.Cleanup(e.Close)
	return e
}

// nft runs nft(8) in a namespace.
func nft(t testing.TB, space ns.NetNS, args ...string) string {
	t.Helper()
	var out []byte
	must(t, space.Do(func(ns.NetNS) (err error) {
		if out, err = exec.Command("nft", args...).CombinedOutput(); err != nil {
			err = fmt.Errorf("nft %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return err
	}))
	return string(out)
}

func TestReal(t *testing.T) {
	suite(t, func(t *testing.T) subject {
		space := ovstest.NewNetNS(t)
		return subject{
			engine:  newEngine(t, space),
			restart: func() engine { return newEngine(t, space) },
			forget: func(item nftnl.Item) {
				switch item := item.(type) {
				case *nftnl.Rules:
					nft(t, space, "flush", "chain", "inet", "weft", item.Chain)
				case *nftnl.Element:
					text := map[string]string{"pods": "{ 10.1.0.5 }", "peers": "{ 192.0.2.1 . udp . 53 }"}[item.Set]
					nft(t, space, "delete", "element", "inet", "weft", item.Set, text)
				}
			},
		}
	})
}

// Other programs' tables are left alone, and nft(8) can read what the engine has written.
func TestRealTable(t *testing.T) {
	space := ovstest.NewNetNS(t)
	nft(t, space, "add table inet other; add chain inet other forward { type filter hook forward priority 0; }; add set inet other pods { type ipv4_addr; }")
	before := nft(t, space, "list", "ruleset")
	e := newEngine(t, space)
	enginetest.Converge(t, e, sample())
	listing := nft(t, space, "list", "table", "inet", "weft")
	for _, want := range []string{
		"ip daddr vmap @pods", "ct state established,related accept", `comment "policy/ns/a"`, "10.9.0.3-10.9.0.77",
		"10.0.0.0/8 . tcp . 80-90", "10.1.0.5 : goto pod-1", "ip saddr . meta l4proto . th dport @peers",
	} {
		if !strings.Contains(listing, want) {
			t.Errorf("nft lists no %q:\n%s", want, listing)
		}
	}
	// Any other rule is found.
	nft(t, space, "add", "rule", "inet", "weft", "policy-1", "ct", "state", "new", "log", "accept")
	nft(t, space, "add", "chain", "inet", "weft", "stray")
	have, err := e.Read(t.Context())
	must(t, err)
	rules := nftnl.Key{Kind: nftnl.KindRules, Name: "policy-1"}
	if sample()[rules].Equal(have[rules]) || have[nftnl.Key{Kind: nftnl.KindChain, Name: "stray"}] == nil {
		t.Error("what others have added is not found")
	}
	enginetest.Converge(t, e, sample())
	enginetest.Converge(t, e, nil)
	nft(t, space, "delete", "table", "inet", "weft")
	enginetest.Converge(t, e, sample()) // the table is created again
	nft(t, space, "delete", "table", "inet", "weft")
	if after := nft(t, space, "list", "ruleset"); after != before {
		t.Errorf("others' tables have changed:\n%s", after)
	}
}

// A table that another program has made dormant, so that no packet traverses it, is found, and is put into force again.
func TestRealDormantTable(t *testing.T) {
	space := ovstest.NewNetNS(t)
	e := newEngine(t, space)
	enginetest.Converge(t, e, sample())
	nft(t, space, "add table inet weft { flags dormant; }")
	have, err := e.Read(t.Context())
	must(t, err)
	if reconcile.Diff(sample(), have).Empty() {
		t.Error("a dormant table is not found")
	}
	enginetest.Converge(t, e, sample())
	if listing := nft(t, space, "list", "table", "inet", "weft"); strings.Contains(listing, "dormant") {
		t.Errorf("the table is still dormant:\n%s", listing)
	}
	// The kernel refuses to add a base chain in the transaction that clears the flag.
	nft(t, space, "add table inet weft { flags dormant; }; flush chain inet weft forward; delete chain inet weft forward")
	enginetest.Converge(t, e, sample())
}

// The engine's own transactions are not reported as drift; other programs' are.
func TestRealWatch(t *testing.T) {
	space := ovstest.NewNetNS(t)
	e := newEngine(t, space)
	ctx, cancel := context.WithCancel(t.Context())
	drift, err := e.Watch(ctx)
	must(t, err)
	<-drift
	enginetest.Converge(t, e, sample())
	nft(t, space, "add", "table", "inet", "other") // its event follows the engine's
	nft(t, space, "add", "table", "ip", "weft")
	enginetest.Converge(t, e, sample())
	select {
	case d := <-drift:
		t.Errorf("drift without a cause: %v", d)
	default:
	}
	nft(t, space, "add", "element", "inet", "weft", "ports", "{ \"veth99\" }")
	select {
	case d := <-drift:
		if d.Err != nil {
			t.Error(d.Err)
		}
	case <-time.After(30 * time.Second):
		t.Error("a change by others is not reported")
	}
	cancel()
	for range drift { // until it is closed
	}
}

// The kernel treats packets as the fake predicts, in any sequence of states, and reads back what was committed.
func TestRealJudge(t *testing.T) {
	space := ovstest.NewNetNS(t)
	must(t, space.Do(func(ns.NetNS) error { return exec.Command("ip", "link", "set", "lo", "up").Run() }))
	e, f := newEngine(t, space), nftnl.NewFake()
	rapid.Check(t, func(r *rapid.T) {
		state := randomState(r)
		enginetest.Converge(r, e, state)
		enginetest.Converge(r, f, state)
		for range 8 {
			destination := fmt.Sprint("127.0.0.", rapid.IntRange(1, 4).Draw(r, "address"))
			port := uint16(rapid.IntRange(3999, 4041).Draw(r, "port"))
			want, _ := f.Judge(nftnl.HookOutput, nftnl.Packet{
				nftnl.IPDestination: addr(destination), nftnl.L4Proto: nftnl.Proto(17), nftnl.DestinationPort: nftnl.Port(port),
				nftnl.OutDevice: nftnl.Name("lo"),
			})
			if have := send(r, space, destination, port); have != want {
				r.Fatalf("UDP to %s:%d: the kernel does %s, the fake %s\n%v", destination, port, have, want, state)
			}
		}
	})
}

// send sends a datagram; the kernel returns EPERM if it is dropped on output.
func send(t *rapid.T, space ns.NetNS, destination string, port uint16) (verdict nftnl.Verdict) {
	err := space.Do(func(ns.NetNS) error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		address := netip.MustParseAddr(destination).As4()
		return unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet4{Addr: address, Port: int(port)})
	})
	switch {
	case errors.Is(err, syscall.EPERM):
		return nftnl.Drop()
	case err != nil:
		t.Fatal(err)
	}
	return nftnl.Accept()
}

// BenchmarkCommit adds one element of a verdict map to a table that already has many, and removes it; nft does the same with nft(8).
func BenchmarkCommit(b *testing.B) {
	for _, present := range []int{50, 20_000} {
		space := ovstest.NewNetNS(b)
		e := newEngine(b, space)
		state := nftnl.Items(&nftnl.Chain{Name: "c"}, &nftnl.Set{Name: "pods", Fields: []nftnl.Field{nftnl.IPDestination}, Verdicts: true})
		for i := range present {
			item := &nftnl.Element{Set: "pods", Match: match(addr(fmt.Sprintf("10.1.%d.%d", i/256, i%256))), Verdict: nftnl.Goto("c")}
			state[item.Key()] = item
		}
		must(b, e.Commit(b.Context(), nftnl.Change{Set: state}))
		one := nftnl.Items(&nftnl.Element{Set: "pods", Match: match(addr("10.2.0.1")), Verdict: nftnl.Goto("c")})
		b.Run(fmt.Sprintf("netlink/present=%d", present), func(b *testing.B) {
			for b.Loop() {
				must(b, e.Commit(b.Context(), nftnl.Change{Set: one}))
				must(b, e.Commit(b.Context(), nftnl.Change{Delete: one}))
			}
		})
		file := filepath.Join(b.TempDir(), "f")
		must(b, os.WriteFile(file, []byte("add element inet weft pods { 10.2.0.1 : goto c }\n"), 0o600))
		b.Run(fmt.Sprintf("nft/present=%d", present), func(b *testing.B) {
			for b.Loop() {
				nft(b, space, "-f", file)
				nft(b, space, "delete", "element", "inet", "weft", "pods", "{ 10.2.0.1 }")
			}
		})
	}
}

// TestBoundedSet: the kernel refuses more elements than a set's maximum, and a set that exists without one is the same set.
func TestBoundedSet(t *testing.T) {
	space := ovstest.NewNetNS(t)
	e := newEngine(t, space)
	state := func(most uint32, addresses ...string) map[nftnl.Key]nftnl.Item {
		items := []nftnl.Item{&nftnl.Set{Name: "bounded", Fields: []nftnl.Field{nftnl.IPSource}, Verdicts: true, Most: most}}
		for _, address := range addresses {
			items = append(items, &nftnl.Element{
				Set: "bounded", Match: []nftnl.Value{nftnl.Addr(netip.MustParseAddr(address))}, Verdict: nftnl.Return(),
			})
		}
		return nftnl.Items(items...)
	}
	must(t, e.Commit(t.Context(), reconcile.Diff(state(2, "10.0.0.1", "10.0.0.2"), nil)))
	if text := nft(t, space, "list", "table", "inet", "weft"); !strings.Contains(text, "size 2") {
		t.Errorf("the set has no maximum:\n%s", text)
	}
	have, err := e.Read(t.Context())
	must(t, err)
	if diff := reconcile.Diff(state(0, "10.0.0.1", "10.0.0.2"), have); !diff.Empty() {
		t.Errorf("without a maximum it differs: %v", diff)
	}
	if err := e.Commit(t.Context(), reconcile.Diff(state(2, "10.0.0.1", "10.0.0.2", "10.0.0.3"), have)); !errors.Is(err, nftnl.ErrRefused) {
		t.Errorf("a third element: %v", err)
	}
	must(t, e.Commit(t.Context(), reconcile.Diff(state(2, "10.0.0.3", "10.0.0.2"), have)))
}
