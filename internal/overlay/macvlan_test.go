package overlay

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/overlay/host"
)

// routerLife returns an agent on a node with two devices. A pod is privileged if its name says so.
func routerLife(t *testing.T) *life {
	t.Helper()
	n := newNode(t.TempDir())
	n.pods.AddParent(podlink.MacvlanParent{Name: "eth0", MTU: 1500, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.7")}})
	n.pods.AddParent(podlink.MacvlanParent{Name: "eth1", MTU: 9000})
	for _, kept := range []podlink.MacvlanParent{
		{Name: "lo", Loopback: true},
		{Name: "tun0"},
		{Name: "br0"},
		{Name: "vxlan0"},
		{Name: "vxlan_sys_4789"},
		{Name: "ovs-system"},
		{Name: "ovs-netdev"},
		{Name: "underlay", Group: host.PodGroup},
		{Name: "weft-p3", Weft: true},
	} {
		kept.MTU = 1500
		n.pods.AddParent(kept)
	}
	n.privileged = func(_ context.Context, pod cni.Args) (bool, error) {
		if strings.Contains(pod.PodName, "away") {
			return false, errors.New("no answer")
		}
		return strings.Contains(pod.PodName, "router"), nil
	}
	l := n.begin(t)
	t.Cleanup(l.stop)
	l.update(t, sample())
	return l
}

// router returns a request for a sandbox whose pod requests a second interface.
func (r requests) router(name, annotation string) *cni.Request {
	req := r.request(name)
	req.NetConf.RuntimeConfig.PodAnnotations = map[string]string{networkv1.AnnotationAssignMacvlan: annotation}
	return req
}

func TestEgressRouter(t *testing.T) {
	l := routerLife(t)
	before := l.node.state(t)
	for annotation, want := range map[string]struct {
		parent string
		mtu    int
	}{"true": {"eth0", 1500}, "eth1": {"eth1", 9000}} {
		req := l.router("router", annotation)
		for range 2 { // the runtime missed the first answer
			result := l.add(t, req)
			if i := slices.IndexFunc(result.Interfaces, func(i *types100.Interface) bool { return i.Name == "macvlan0" }); i < 0 || result.Interfaces[i].Sandbox != req.Netns || result.Interfaces[i].Mtu != want.mtu || result.Interfaces[i].Mac == "" {
				t.Errorf("%s: interfaces %+v", annotation, result.Interfaces)
			}
			toNode := 0
			for _, route := range result.Routes {
				if ones, _ := route.Dst.Mask.Size(); ones == 32 && route.GW.String() == "10.128.0.1" {
					toNode++
				}
			}
			if wanted := map[string]int{"eth0": 2}[want.parent]; toNode != wanted {
				t.Errorf("%s: %d routes to the device's addresses, want %d", annotation, toNode, wanted)
			}
		}
		l.whole(t, req)
		made := podlink.Macvlan{Netns: req.Netns, Name: "macvlan0", Parent: want.parent, Owner: "attachment/router/eth0"}
		if got := l.node.pods.Macvlans(); !reflect.DeepEqual(got, []podlink.Macvlan{made}) {
			t.Errorf("%s: macvlans %+v", annotation, got)
		}
		if err := l.Check(t.Context(), req); err != nil {
			t.Error(err)
		}
		l = l.restart(t)
		if err := l.Check(t.Context(), req); err != nil {
			t.Errorf("after a restart: %v", err)
		}
		// The router changes its default route. Everything else stays as it was.
		l.node.pods.Alter(l.record(t, req).HostInterface, func(p *podlink.Pair) {
			p.PodRoutes = slices.DeleteFunc(slices.Clone(p.PodRoutes), func(r link.Route) bool { return r.Dst.Bits() == 0 })
		})
		if err := l.Check(t.Context(), req); err != nil {
			t.Errorf("with another default route: %v", err)
		}
		if err := l.node.pods.DeleteMacvlan(t.Context(), made); err != nil {
			t.Fatal(err)
		}
		if err := l.Check(t.Context(), req); err == nil || !strings.Contains(err.Error(), "macvlan0") {
			t.Errorf("without its macvlan: %v", err)
		}
		l.add(t, req) // creates it again
		l.node.pods.onDelete(func() error { return errors.New("held up") })
		l.del(t, req)
		if got := l.node.pods.Macvlans(); len(got) > 0 {
			t.Errorf("left when the DEL is answered: %+v", got)
		}
		l.node.pods.onDelete(nil)
		l.del(t, req)
		l.nothingLeft(t, before)
		if got := l.node.pods.Macvlans(); len(got) > 0 {
			t.Errorf("left: %+v", got)
		}
	}
}

func TestEgressRouterRefused(t *testing.T) {
	l := routerLife(t)
	before := l.node.state(t)
	for name, c := range map[string]struct {
		annotation string
		code       cni.Code
		part       string
	}{
		"plain":    {"true", cni.CodeInvalidConfig, "only a pod with a privileged container"},
		"away":     {"true", cni.CodeTryAgainLater, "no answer: try again later"},
		"router":   {"eth7", cni.CodeInvalidConfig, "eth7"},
		"router-b": {"", cni.CodeInvalidConfig, `"": it is true, false, or the name`},
		"router-c": {"../eth0", cni.CodeInvalidConfig, "the name of an interface"},
	} {
		_, err := l.Add(t.Context(), l.router(name, c.annotation))
		if !codeIs(err, c.code) || !strings.Contains(err.Error(), c.part) || !strings.Contains(err.Error(), networkv1.AnnotationAssignMacvlan) {
			t.Errorf("%s: %v", name, err)
		}
		l.nothingLeft(t, before)
	}
	for name, of := range map[string]string{
		"lo": "the loopback device", "tun0": "the switch's", "br0": "the switch's", "vxlan0": "the switch's", "vxlan_sys_4789": "the switch's",
		"ovs-system": "the switch's", "ovs-netdev": "the switch's", "underlay": "Weft's", "weft-p3": "Weft's",
	} {
		_, err := l.Add(t.Context(), l.router("router", name))
		if !codeIs(err, cni.CodeInvalidConfig) || !strings.Contains(err.Error(), name+" is "+of+": name an interface of the node") {
			t.Errorf("on %s: %v", name, err)
		}
	}
	l.nothingLeft(t, before)
	// For other pods, it is not checked whether they are privileged.
	l.add(t, l.router("away-1", "false"))
	l.add(t, l.request("away-2"))
}

// No failure leaves anything behind.
func TestEgressRouterFails(t *testing.T) {
	l := routerLife(t)
	before := l.node.state(t)
	req := l.router("router", "true")
	l.node.pods.onCreate(func() error {
		_, err := l.node.pods.CreateMacvlan(context.Background(), podlink.Macvlan{Netns: req.Netns, Name: "macvlan0", Parent: "eth0", Owner: "another"})
		return err
	})
	if _, err := l.Add(t.Context(), req); !errors.Is(err, link.ErrForeign) {
		t.Errorf("ADD: %v", err)
	}
	l.nothingLeft(t, before)
	if got := l.node.pods.Macvlans(); len(got) != 1 || got[0].Owner != "another" {
		t.Errorf("macvlans: %+v", got)
	}
}
