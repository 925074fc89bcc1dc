//go:build real

package crds

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const portUUID = "5b1fdbd5-6f0b-4f0a-9a5c-0d9c5f3f0f11"

// neutronPort returns a NeutronPort in which words are replaced: pairs of the old and the new.
func neutronPort(words ...string) string {
	return strings.NewReplacer(words...).Replace(`{apiVersion: network.weft.dev/v1, kind: NeutronPort, metadata: {name: ` + portUUID + `}, spec: {
  network: {namespace: blue, name: blue, uid: a1, id: 1b9d5f4c-5a7e-4f2c-9d3c-6a6a3f0c2c11}, node: node-1, mac: "0a:58:0a:f4:00:05",
  addresses: [{address: 10.244.0.5/16, gateway: 10.244.0.1, gatewayMAC: "fa:16:3e:00:00:01"}], mtu: 1442,
  routes: [{destination: 192.0.2.0/24, nextHop: 10.244.0.9}], dns: [192.0.2.53]}}`)
}

// A mistake in a NeutronPort is refused with the field and what would be right, and what identifies a port cannot change.
func TestNeutronPort(t *testing.T) {
	c, err := client.New(server.Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []manifest{
		{"a port", neutronPort(), ""},
		{"dual stack", neutronPort("addresses: [", "addresses: [{address: 'fd00::5/64'}, "), ""},
		{"a name that is no UUID", neutronPort(portUUID, "port-1"), "must be the port's UUID"},
		{"two addresses of one family", neutronPort("addresses: [", "addresses: [{address: 10.1.0.5/16}, "), "at most one address of each family"},
		{"no address", neutronPort(" 10.244.0.5/16", " ''"), "must be an address with the length"},
		{"an address without its length", neutronPort("10.244.0.5/16", "10.244.0.5"), "must be an address with the length"},
		{"a gateway that is a name", neutronPort("10.244.0.1,", "router,"), "must be an IP address"},
		{"a multicast MAC", neutronPort("0a:58:0a", "0b:58:0a"), "spec.mac"},
		{"no node", neutronPort("node: node-1", "node: ''"), "spec.node"},
		{"an MTU too small", neutronPort("1442", "60"), "spec.mtu"},
		{"a route into nothing", neutronPort("192.0.2.0/24", "everything"), "must be a range"},
	} {
		t.Run(m.name, func(t *testing.T) { m.try(t, c) })
	}
	port := object(t, neutronPort())
	if err := c.Create(t.Context(), port); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Delete(context.Background(), port) })
	for words, refused := range map[[2]string]string{
		{"node-1", "node-2"}:                           "node cannot change",
		{"0a:58:0a:f4:00:05", "0a:58:0a:f4:00:06"}:     "mac cannot change",
		{"10.244.0.5/16", "10.244.0.6/16"}:             "addresses cannot change",
		{"name: blue", "name: red"}:                    "network cannot change",
		{"mtu: 1442", "mtu: 1400, active: true"}:       "",
		{"gateway: 10.244.0.1", "gateway: 10.244.0.2"}: "",
	} {
		changed := object(t, neutronPort(words[0], words[1]))
		changed.SetResourceVersion(port.GetResourceVersion())
		err := c.Update(t.Context(), changed, client.DryRunAll)
		if refused == "" && err != nil || refused != "" && (err == nil || !strings.Contains(err.Error(), refused)) {
			t.Errorf("%s to %s: %v, want %q", words[0], words[1], err, refused)
		}
	}
	for node, want := range map[string]int{"node-1": 1, "node-2": 0} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(port.GroupVersionKind())
		if err := c.List(t.Context(), list, client.MatchingFields{"spec.node": node}); err != nil || len(list.Items) != want {
			t.Errorf("ports of %s: %d, %v; want %d", node, len(list.Items), err, want)
		}
	}
}
