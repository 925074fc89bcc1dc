//go:build real

package nftables_test

import (
	"maps"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/policy/nftables"
	"weft.dev/weft/internal/policy/oracle"
)

// Packets of pods, of their node and from outside pass as the API's documentation says, whatever the order in which policies are added
// and deleted. A restarted agent changes nothing.
func TestPackets(t *testing.T) {
	n := newNode(t, 5)
	n.start(t)
	worlds := rapid.Custom(drawWorld)
	var last oracle.World
	for seed := range 5 {
		w := worlds.Example(seed * 7)
		for _, pod := range last.Pods {
			rec := record(pod)
			n.enforcer.Close(rec)
		}
		if err := n.enforcer.Update(t.Context(), changeOf(t, w)); err != nil {
			t.Fatal(err)
		}
		n.admit(t, w)
		n.judge(t, w)
		if t.Failed() {
			t.Fatalf("in world %d", seed)
		}
		last = w
	}
	n.end()
	n.begin(t, last)
	n.start(t)
	if changed := n.commits.take(); changed != 0 {
		t.Errorf("one that begins anew changes %d items", changed)
	}
}

// Pods reach nothing before they are attached, nor without the chains while bridged packets do not pass them.
func TestNotJudged(t *testing.T) {
	n := newNode(t, 3)
	n.start(t)
	w := web(false)
	if err := n.enforcer.Update(t.Context(), changeOf(t, w)); err != nil {
		t.Fatal(err)
	}
	attached := w
	attached.Pods = w.Pods[:2]
	n.admit(t, attached)
	closed := func(what string, from int, to ...string) {
		t.Helper()
		for _, text := range to {
			for network, port := range map[string]uint16{"tcp": 80, "udp": 85} {
				if c, err := dial(t, n.pods[from], network, netip.AddrPortFrom(netip.MustParseAddr(text), port), impatience); err == nil {
					c.Close()
					t.Errorf("%s: %s of %s passes", what, network, text)
				}
			}
		}
	}
	closed("a pod that is not attached", 2, "10.0.0.1", "fd00::1", gateway4, gateway6, outside4, outside6)
	closed("to a pod that is not attached", 0, "10.0.0.3", "fd00::3")
	n.judge(t, attached)
	n.call(t, 0)
	closed("while the bridge does not call", 0, "10.0.0.2", "fd00::2")
	n.call(t, 1)
	n.judge(t, attached)
	for _, pod := range attached.Pods {
		rec := record(pod)
		n.enforcer.Close(rec)
	}
	n.enforcer.Commit()
	if err := n.loop.Apply(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	closed("detached", 0, "10.0.0.2", "fd00::2", gateway4, outside4)
	want := nftables.Static(config)
	maps.Copy(want, nftables.Gates(config))
	have, err := n.loop.Read(t.Context())
	if err != nil || !maps.EqualFunc(have, want, func(a, b nftnl.Item) bool { return a.Equal(b) }) {
		t.Errorf("without pods, the table has %v, %v", have, err)
	}
}

// Nothing remains of the chains of an earlier release, which had a base chain for each direction.
func TestEarlierRelease(t *testing.T) {
	n := newNode(t, 2)
	cmd := exec.Command("nsenter", "--net="+n.space, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(`table inet weft_policy {
		map from4 { typeof ip saddr : verdict; }
		map to4 { typeof ip daddr : verdict; elements = { 10.0.0.1 : return, 10.0.0.2 : goto pods }; }
		chain one { tcp dport 80 accept; }
		chain pods { jump one; counter drop; }
		chain egress { type filter hook forward priority -10; ct state established,related accept; oifname "cni0" jump midstream-to; ip saddr vmap @from4; }
		chain ingress { type filter hook forward priority -9; ct state established,related accept; oifname != "cni0" accept; ip daddr vmap @to4; counter drop; }
		chain egress-input { type filter hook input priority -10; ct state established,related accept; }
		chain midstream-output { type filter hook output priority -10; oifname "cni0" jump midstream-to; }
		chain midstream-to { ip daddr vmap @from4; }
	}`)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	n.start(t)
	want := nftables.Static(config)
	maps.Copy(want, nftables.Gates(config))
	have, err := n.loop.Read(t.Context())
	if err != nil || !maps.EqualFunc(have, want, func(a, b nftnl.Item) bool { return a.Equal(b) }) {
		t.Errorf("the table has %v, %v", have, err)
	}
	w := web(false)
	if err := n.enforcer.Update(t.Context(), changeOf(t, w)); err != nil {
		t.Fatal(err)
	}
	w.Pods = w.Pods[:2]
	n.admit(t, w)
	n.judge(t, w)
}

// Policies judge the pod behind a Service, also on the same node and for the pod itself: addresses are translated before the chains.
func TestServices(t *testing.T) {
	n := newNode(t, 3)
	n.start(t)
	cmd := exec.Command("nsenter", "--net="+n.space, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(`table inet proxy {
		chain prerouting { type nat hook prerouting priority dstnat; ip daddr 10.96.0.1 dnat ip to 10.0.0.1; ip6 daddr fd96::1 dnat ip6 to fd00::1; }
		chain postrouting { type nat hook postrouting priority srcnat; ip saddr 10.0.0.1 ip daddr 10.0.0.1 masquerade; ip6 saddr fd00::1 ip6 daddr fd00::1 masquerade; }
	}`)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	w := web(false, networkingv1.PolicyTypeIngress)
	w.Policies[0].Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
		{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}},
	}}}
	if err := n.enforcer.Update(t.Context(), changeOf(t, w)); err != nil {
		t.Fatal(err)
	}
	n.admit(t, w)
	for i, pod := range []string{"the pod itself", "a client", "another pod"} {
		for _, service := range []string{"10.96.0.1", "fd96::1"} {
			allowed, wait := i < 2, impatience
			if allowed {
				wait = patience
			}
			c, err := dial(t, n.pods[i], "tcp", netip.AddrPortFrom(netip.MustParseAddr(service), 80), wait)
			if err == nil {
				c.Close()
			}
			if allowed != (err == nil) {
				t.Errorf("%s to Service %s: allowed %t, seen: %v", pod, service, allowed, err)
			}
		}
	}
}
