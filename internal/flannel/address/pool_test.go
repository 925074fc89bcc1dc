package address_test

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/flannel/address"
)

func pool(t *testing.T) *address.Pool {
	t.Helper()
	book, err := address.Open(filepath.Join(t.TempDir(), "addresses.json"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return &address.Pool{Book: book}
}

func named(pod string) address.Name {
	return address.Name{Namespace: "shop", Pod: pod, Interface: "eth0"}
}

// TestChoose: a pod gets the addresses that it asks for, else those that are kept for its name, else the next ones, and none that is another
// pod's.
func TestChoose(t *testing.T) {
	p, used := pool(t), map[netip.Addr]bool{}
	taken := func(a netip.Addr) bool { return used[a] }
	choose := func(pod, want string, asked ...netip.Addr) {
		t.Helper()
		got, err := p.Choose(ranges(), address.Wish{Name: named(pod), Asked: asked}, taken)
		var texts []string
		for _, addr := range got {
			used[addr] = true
			texts = append(texts, addr.String())
		}
		if err != nil {
			texts = []string{err.Error()}
		}
		if text := strings.Join(texts, " "); !strings.HasPrefix(text, want) || want == "" {
			t.Errorf("pod %s: %s, want %s", pod, text, want)
		}
	}
	if err := p.Book.Keep(named("web-0"), addresses("10.244.3.3", "fd00:244:0:3::9"), time.Hour); err != nil {
		t.Fatal(err)
	}
	choose("a", "10.244.3.2 fd00:244:0:3::2")
	choose("b", "10.244.3.4 fd00:244:0:3::3") // 10.244.3.3 is kept
	choose("c", "address 10.244.3.3, which the pod asks for, is kept for the next pod shop/web-0", addresses("10.244.3.3")...)
	choose("c", "address 10.244.3.4, which the pod asks for, is another pod's", addresses("10.244.3.4")...)
	choose("web-0", "10.244.3.3 fd00:244:0:3::9")
	choose("web-0", "10.244.3.5 fd00:244:0:3::4") // the pod before is still there
	delete(used, addresses("10.244.3.3")[0])
	choose("web-0", "10.244.3.77 fd00:244:0:3::5", addresses("10.244.3.77")...)
	choose("d", "10.244.3.6 fd00:244:0:3::6")
}

// TestAllKept: kept addresses keep no pod from starting: when no other address is free, the one that expires first goes.
func TestAllKept(t *testing.T) {
	p := pool(t)
	subnets := []netip.Prefix{netip.MustParsePrefix("10.244.3.0/29")}
	for pod, long := range map[string]time.Duration{"2": time.Hour, "3": time.Minute, "4": 2 * time.Hour, "5": time.Hour, "6": time.Hour} {
		if err := p.Book.Keep(named(pod), addresses("10.244.3."+pod), long); err != nil {
			t.Fatal(err)
		}
	}
	free := func(netip.Addr) bool { return false }
	got, err := p.Choose(subnets, address.Wish{Name: named("new")}, free)
	if err != nil || got[0] != addresses("10.244.3.3")[0] {
		t.Errorf("%v, %v", got, err)
	}
	_, err = p.Choose(subnets, address.Wish{Name: named("new")}, func(netip.Addr) bool { return true })
	if err == nil || !strings.Contains(err.Error(), "no address of this node's subnet 10.244.3.0/29 is free") {
		t.Error(err)
	}
}
