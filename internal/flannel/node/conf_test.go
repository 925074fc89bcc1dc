package node

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/flannel/daemon"
	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/nftables"
	"weft.dev/weft/internal/reconcile"
)

func state() *daemon.State {
	return &daemon.State{
		Networks: [2]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Subnets: [2]netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")},
		MTU: 1450, Masq: true,
	}
}

// TestConfOfManifest: the configuration of flannel's own manifest, and none at all, mean the same.
func TestConfOfManifest(t *testing.T) {
	for _, text := range []string{defaultConflist, ""} {
		c, err := parseConf([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		b, err := c.bridge(state())
		if err != nil {
			t.Fatal(err)
		}
		if b.Name != "cni0" || !b.Gateway || !b.Default || !b.Hairpin || b.MTU != 1450 || b.network != "cbr0" || b.dataDir != "/var/lib/cni/networks" {
			t.Errorf("bridge %+v", b)
		}
		if len(b.Routes) != 1 || b.Routes[0].Dst.String() != "10.244.0.0/16" || len(b.Ranges) != 1 || b.gateways()[0].String() != "10.244.3.1/24" {
			t.Errorf("routes %v, ranges %v, gateways %v", b.Routes, b.Ranges, b.gateways())
		}
		data, err := c.conflist(map[string]string{"socket": "/s"})
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Name    string
			Plugins []struct{ Type, Socket string }
		}
		if err := json.Unmarshal(data, &list); err != nil || list.Name != "cbr0" || len(list.Plugins) != 2 ||
			list.Plugins[0].Socket != "/s" || list.Plugins[1].Socket != "" || list.Plugins[1].Type != "portmap" {
			t.Errorf("conflist %s: %v", data, err)
		}
	}
}

// TestConfRefused: what the agent cannot serve is named, with the key.
func TestConfRefused(t *testing.T) {
	entry := func(text string) string { return `{"name":"n","plugins":[{"type":"flannel",` + text + `}]}` }
	for text, word := range map[string]string{
		`[]`:                               "not a JSON object",
		`{"name":"n","plugins":[]}`:        "no plugin of type flannel",
		`{"name":"n","plugins":3}`:         "plugins is not a list",
		`{"plugins":[{"type":"flannel"}]}`: "name is missing",
		`{"name":"n","plugins":[{"type":"flannel"},{"type":"flannel"}]}`: "two plugins",
		entry(`"delegate":{"type":"ptp"}`):                               `delegate.type "ptp"`,
		entry(`"delegate":{"vlan":3}`):                                   "vlan",
		entry(`"delegate":{"mtu":"x"}`):                                  "mtu",
		entry(`"delegate":{"ipMasq":true}`):                              "delegate.ipMasq",
		entry(`"delegate":{"name":"x"}`):                                 "delegate.name",
		entry(`"ipam":{"type":"dhcp"}`):                                  `ipam.type "dhcp"`,
		entry(`"ipam":{"routes":[{}]}`):                                  "without dst",
	} {
		c, err := parseConf([]byte(text))
		if err == nil {
			_, err = c.bridge(state())
		}
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: error %v, want one that names %q", text, err, word)
		}
	}
}

func FuzzConf(f *testing.F) {
	f.Add([]byte(defaultConflist))
	f.Add([]byte(`{"name":"mynet","type":"flannel"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parseConf(text)
		if err != nil {
			return
		}
		if _, err := c.conflist(nil); err != nil {
			t.Errorf("no conflist: %v", err)
		}
		if b, err := c.bridge(state()); err == nil && b.Name == "" {
			t.Error("a bridge without a name")
		}
	})
}

// TestCloser: without the enforcer a NetworkPolicy closes the pods that it selects, in the directions that it isolates, whatever it
// allows; pods of none pass, and so does what answers them.
func TestCloser(t *testing.T) {
	pod := func(name, address string) (corev1.Pod, Pod) {
		object := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": name}}, Spec: corev1.PodSpec{NodeName: "n"},
		}
		return object, Pod{Key: attach.Key{ContainerID: name, IfName: "eth0"}, Namespace: "shop", Name: name, Addresses: []netip.Addr{netip.MustParseAddr(address)}}
	}
	web, webPod := pod("web", "10.244.3.2")
	db, dbPod := pod("db", "10.244.3.3")
	_, late := pod("late", "10.244.3.4")
	objects := &seen{pods: corev1.PodList{Items: []corev1.Pod{web, db}}, policies: networkingv1.NetworkPolicyList{Items: []networkingv1.NetworkPolicy{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{}},
		},
	}}}}
	c := &closer{node: "n", bridge: "cni0", pods: map[attach.Key]Pod{webPod.Key: webPod, dbPod.Key: dbPod, late.Key: late}}
	fragments := c.compile(objects)
	fragments[owner] = nftables.Static(nftables.Config{Bridge: "cni0"})
	table := nftnl.NewFake()
	loop := reconcile.NewLoop(table, reconcile.Options[nftnl.Key, nftnl.Item]{})
	go func() { _ = loop.Run(t.Context()) }()
	if err := loop.Start(t.Context(), fragments); err != nil {
		t.Fatal(err)
	}
	for _, p := range []struct {
		from, to string
		state    uint32
		want     nftnl.Verdict
	}{
		{"10.244.3.3", "10.244.3.2", nftnl.StateNew, nftnl.Accept()},
		{"10.244.3.2", "10.244.3.3", nftnl.StateNew, nftnl.Drop()},
		{"10.244.3.2", "10.244.3.3", nftnl.StateEstablished, nftnl.Accept()},
		{"10.244.9.9", "10.244.3.3", nftnl.StateNew, nftnl.Drop()},
		{"10.244.9.9", "10.244.3.2", nftnl.StateNew, nftnl.Accept()},
		{"10.244.3.4", "10.244.3.2", nftnl.StateNew, nftnl.Drop()}, // not in the watch
		{"10.244.3.2", "10.244.3.4", nftnl.StateNew, nftnl.Drop()},
	} {
		in := "cni0"
		if strings.HasPrefix(p.from, "10.244.9") {
			in = "flannel.1"
		}
		verdict, _ := table.Judge(nftnl.HookForward, nftnl.Packet{
			nftnl.InDevice: nftnl.Name(in), nftnl.OutDevice: nftnl.Name("cni0"), nftnl.ConntrackState: nftnl.Bits(p.state),
			nftnl.IPSource: nftnl.Addr(netip.MustParseAddr(p.from)), nftnl.IPDestination: nftnl.Addr(netip.MustParseAddr(p.to)),
			nftnl.L4Proto: nftnl.Proto(uint8(policy.TCP)), nftnl.SourcePort: nftnl.Port(40000), nftnl.DestinationPort: nftnl.Port(80),
		})
		if verdict != p.want {
			t.Errorf("%s to %s, state %d: %v, want %v", p.from, p.to, p.state, verdict, p.want)
		}
	}
}
