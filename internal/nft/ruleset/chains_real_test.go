//go:build real

package ruleset

import (
	"fmt"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nfnetlink"
)

const manyChains = `
table inet t {
  chain plain { }
  chain early { type filter hook prerouting priority raw - 150; policy accept; }
  chain in { type filter hook input priority filter + 10; policy drop; }
  chain forward { type filter hook forward priority filter; policy drop; jump { counter drop; }; goto plain; }
  chain out { type route hook output priority mangle; }
  chain post { type nat hook postrouting priority srcnat + 1; }
  chain ingress { type filter hook ingress device "one" priority -5; policy accept; }
}
table netdev t {
  chain one { type filter hook ingress device "one" priority 0; policy drop; }
  chain both { type filter hook ingress devices = { one, two } priority 7; }
  chain egress { type filter hook egress device "two" priority 0; }
}
table bridge t {
  chain pre { type filter hook prerouting priority dstnat; policy accept; }
  chain in { type filter hook input priority -200; policy drop; }
  chain forward { type filter hook forward priority 0; }
  chain out { type filter hook output priority 100; }
  chain post { type filter hook postrouting priority srcnat; }
}
table arp t {
  chain in { type filter hook input priority 0; policy accept; }
  chain out { type filter hook output priority 0; policy drop; }
}
table ip6 t {
  chain in { type filter hook input priority security; policy drop; }
  chain translate { type nat hook prerouting priority dstnat; }
}
`

// The chains read by netlink are those of nft's listing, also those of iptables-nft with rules that nft lists as xt.
func TestRealChainsAreNftsListing(t *testing.T) {
	netns := nstest.New(t)
	command := func(input, name string, args ...string) (out []byte) {
		nstest.Do(t, netns, func() (err error) {
			program := exec.Command(name, args...)
			program.Stdin = strings.NewReader(input)
			if out, err = program.CombinedOutput(); err != nil {
				return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
			}
			return nil
		})
		return out
	}
	command("", "ip", "link", "add", "one", "type", "veth", "peer", "name", "two")
	for _, line := range []string{
		"iptables-nft -P FORWARD DROP", "iptables-nft -N DOCKER-USER", "iptables-nft -A FORWARD -j DOCKER-USER",
		"iptables-nft -A FORWARD -m comment --comment words -m conntrack --ctstate INVALID -j REJECT",
		"iptables-nft -t nat -A POSTROUTING -o one -j MASQUERADE", "iptables-nft -t mangle -A OUTPUT -j ACCEPT", "iptables-nft -t raw -A PREROUTING -j ACCEPT",
		"ip6tables-nft -P INPUT DROP", "ip6tables-nft -A INPUT -j REJECT",
	} {
		words := strings.Fields(line)
		command("", words[0], words[1:]...)
	}
	command(manyChains, "nft", "-f", "-")
	listed, err := parseObjects(command("", "nft", "-j", "list", "chains"))
	if err != nil {
		t.Fatal(err)
	}
	var read []nfnetlink.Chain
	nstest.Do(t, netns, func() (err error) {
		read, err = nfnetlink.Chains(unix.NFPROTO_UNSPEC)
		return err
	})
	devices := map[nft.Key][]string{}
	got := make([]chainObject, 0, len(read))
	for i := range read {
		chain := newChainObject(&read[i])
		if len(chain.devices) > 0 {
			devices[tableKey{chain.Family, chain.Table}.object(nft.KindChain, chain.Name)] = slices.Sorted(slices.Values(chain.devices))
		}
		chain.devices = nil // nft 1.0.6 omits them
		got = append(got, chain)
	}
	byName := func(a, b chainObject) int {
		return strings.Compare(fmt.Sprint(a.Family, a.Table, a.Name), fmt.Sprint(b.Family, b.Table, b.Name))
	}
	slices.SortFunc(got, byName)
	slices.SortFunc(listed.chains, byName)
	if len(got) < 25 || !reflect.DeepEqual(got, listed.chains) {
		t.Errorf("read are\n%+v\nlisted are\n%+v", got, listed.chains)
	}
	want := map[nft.Key][]string{
		{Family: nft.FamilyInet, Table: "t", Kind: nft.KindChain, Name: "ingress"}: {"one"}, {Family: nft.FamilyNetdev, Table: "t", Kind: nft.KindChain, Name: "one"}: {"one"},
		{Family: nft.FamilyNetdev, Table: "t", Kind: nft.KindChain, Name: "both"}: {"one", "two"}, {Family: nft.FamilyNetdev, Table: "t", Kind: nft.KindChain, Name: "egress"}: {"two"},
	}
	if !reflect.DeepEqual(devices, want) {
		t.Errorf("devices are %v", devices)
	}
}

// The generation is that of nft's transactions.
func TestRealGeneration(t *testing.T) {
	netns := nstest.New(t)
	nstest.Do(t, netns, func() error {
		before, err := nfnetlink.Generation()
		if err != nil {
			return err
		}
		if out, err := exec.Command("nft", "add", "table", "inet", "t").CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		if after, err := nfnetlink.Generation(); err != nil || after != nextGeneration(before) {
			return fmt.Errorf("after generation %d comes %d: %w", before, after, err)
		}
		return nil
	})
}
