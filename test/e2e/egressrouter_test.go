//go:build lab

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/podruntime"
	"weft.dev/weft/test/traffic"
)

// routerSpec is an egress router as users write it.
func routerSpec(name, annotation string) lab.PodSpec {
	return lab.PodSpec{
		Node: "n1", Namespace: "default", Name: name, Privileged: true,
		Annotations: map[string]string{networkv1.AnnotationAssignMacvlan: annotation},
	}
}

// become does what the router's image does: it takes an address of the node's network, and forwards clients' traffic to a destination
// there.
func become(t *testing.T, c *lab.Cluster, p *lab.Pod, source netip.Addr, destination netip.AddrPort) {
	t.Helper()
	route := strings.Fields(mustRun(t, c.Node(1).Enter("ip", "-4", "route", "show", "default")))
	for _, command := range []string{
		"ip addr add " + source.String() + "/24 dev macvlan0",
		"ip route replace default via " + route[2] + " dev macvlan0",
		"sysctl -qw net.ipv4.ip_forward=1", // in the pod's namespace
		fmt.Sprintf("nft table ip router { chain in { type nat hook prerouting priority dstnat; iifname eth0 meta l4proto { tcp, udp } th dport %d dnat to %s; }; "+
			"chain out { type nat hook postrouting priority srcnat; oifname macvlan0 snat to %s; }; }", sourcePort, destination, source),
	} {
		words := strings.Fields(command)
		if words[0] == "nft" {
			words = []string{"nft", strings.TrimPrefix(command, "nft ")}
		}
		mustRun(t, p.Enter(words...))
	}
}

// A pod with a privileged container gets an interface in its node's network, by which it forwards others' traffic with an address of its
// own. It still reaches pods, Services and its node.
func TestEgressRouter(t *testing.T) {
	c := cluster(t)
	client, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	n1 := c.Node(1)
	pods := &policyScene{cluster: c}
	services := &serviceScene{cluster: c, client: client}
	near := pods.pod(t, lab.PodSpec{Node: "n1", Namespace: "default", Name: "er-near"})
	far := pods.pod(t, lab.PodSpec{Node: "n2", Namespace: "default", Name: "er-far"})
	startSourceServer(t, far.Netns, "far", sourcePort)
	startSourceServer(t, c.Outside.Netns, "outside", outsidePort)
	sourceServerAt(t, n1.Netns, "node", port(n1.IP, roundPort))
	service := services.simple(t, "er", nil, at(far))
	settles(t, near.Netns, port(service, 80), "far")

	notRouters(t, c)
	uplink := strings.Fields(mustRun(t, n1.Enter("ip", "-4", "route", "show", "default")))[4]
	var routers []*lab.Pod
	for name, annotation := range map[string]string{"er-1": "true", "er-2": uplink} {
		p := pods.pod(t, routerSpec(name, annotation))
		source := netip.AddrFrom4([4]byte{172, 31, 0, map[string]byte{"er-1": 211, "er-2": 212}[name]})
		var result types100.Result
		if err := json.Unmarshal(p.Result, &result); err != nil || len(result.Interfaces) != 3 || result.Interfaces[2].Name != "macvlan0" {
			t.Errorf("%s: result %s, %v", name, p.Result, err)
		}
		if again, err := p.AddAgain(t.Context()); err != nil || string(again) != string(p.Result) {
			t.Errorf("%s: repeated ADD: %s, %v; was %s", name, again, err, p.Result)
		}
		if err := p.Check(t.Context()); err != nil {
			t.Errorf("%s after ADD: %v", name, err)
		}
		routers = append(routers, p)
		become(t, c, p, source, port(c.Outside.IP, outsidePort))
		await(t, name+" reaches the host outside", func(ctx context.Context) error {
			answer, err := traffic.Ask(ctx, p.Netns, "tcp", port(c.Outside.IP, outsidePort))
			if err == nil && answer.Source != source {
				err = fmt.Errorf("%s", answer)
			}
			return err
		})
		asked(t,
			asker{name, p.Netns, port(c.Outside.IP, outsidePort), "outside", source},
			asker{"near, through " + name, near.Netns, port(p.IPs[0], sourcePort), "outside", source},
			asker{"far, through " + name, far.Netns, port(p.IPs[0], sourcePort), "outside", source},
			asker{name, p.Netns, port(far.IPs[0], sourcePort), "far", p.IPs[0]},
			asker{name, p.Netns, port(service, 80), "far", p.IPs[0]},
			asker{name, p.Netns, port(n1.IP, roundPort), "node", p.IPs[0]})
		if err := p.Check(t.Context()); err != nil {
			t.Errorf("%s while it forwards: %v", name, err)
		}
	}
	for _, p := range routers {
		for range 2 {
			if _, err := p.Detach(t.Context()); err != nil {
				t.Errorf("ending %s: %v", p.Name, err)
			}
		}
	}
	if files := mustRun(t, n1.Enter("sh", "-c", "ls /var/lib/weft/attachments-extra")); files != "" {
		t.Errorf("files left in attachments-extra: %s", files)
	}
}

// notRouters adds pods with invalid requests, which are refused with a reason.
func notRouters(t *testing.T, c *lab.Cluster) {
	t.Helper()
	plain := routerSpec("er-plain", "true")
	plain.Privileged = false
	for part, spec := range map[string]lab.PodSpec{
		"only a pod with a privileged container": plain,
		"nosuch0: device does not exist":         routerSpec("er-nosuch", "nosuch0"),
	} {
		p, err := c.AddPod(t.Context(), spec)
		var failure *podruntime.Failure
		if !asFailure(err, &failure) || !strings.Contains(err.Error(), part) || !strings.Contains(err.Error(), networkv1.AnnotationAssignMacvlan) {
			t.Errorf("%s: %v", spec.Name, err)
		}
		if p != nil {
			if err := c.DelPod(t.Context(), p); err != nil {
				t.Error(err)
			}
		}
	}
}
