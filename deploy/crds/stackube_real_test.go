//go:build real

package crds

import (
	"context"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// stackubeManifests returns manifests of stackube.kubernetes.io/v1 as users of stackube write them, and with mistakes.
func stackubeManifests() []manifest {
	const api = "{apiVersion: stackube.kubernetes.io/v1, "
	network := func(spec string) string {
		return api + "kind: Network, metadata: {name: net, namespace: default}, spec: {" + spec + "}}"
	}
	tenant := func(spec string) string {
		return api + "kind: Tenant, metadata: {name: t, namespace: default}, spec: {" + spec + "}}"
	}
	return []manifest{
		{"Network", network("cidr: 10.244.0.0/16, gateway: 10.244.0.1"), ""},
		{"Network that is there", network("networkID: 1b9d5f4c-5a7e-4f2c-9d3c-6a6a3f0c2c11"), ""},
		{"empty fields, as Go clients write them", network("cidr: 10.244.0.0/16, gateway: '', networkID: ''"), ""},
		{"name servers", network("cidr: 10.244.0.0/16, dnsServers: [192.0.2.53, '2001:db8::53']"), ""},
		{"Network of nothing", network("gateway: 10.244.0.1"), "give cidr, or networkID"},
		{"range with host bits", network("cidr: 10.244.0.1/16"), "not an IPv4 range"},
		{"range that is a name", network("cidr: net1"), "not an IPv4 range"},
		{"range too small", network("cidr: 10.244.0.0/30"), "not an IPv4 range"},
		{"range of IPv6", network("cidr: 'fd00::/64'"), "not an IPv4 range"},
		{"gateway outside", network("cidr: 10.244.0.0/16, gateway: 10.245.0.1"), "gateway is not an address in cidr"},
		{"gateway that is a name", network("cidr: 10.244.0.0/16, gateway: router"), "gateway is not an address in cidr"},
		{"name server that is a name", network("cidr: 10.244.0.0/16, dnsServers: [dns]"), "not a list of addresses"},
		{"Tenant", tenant("username: u, password: p"), ""},
		{"Tenant of a project that is there", tenant("username: u, password: p, tenantID: 0123456789abcdef0123456789abcdef"), ""},
		{"Tenant without a user", tenant("password: p"), "username"},
		{"Tenant without a password", tenant("username: u, password: ''"), "password"},
		{"Tenant with a name that no Namespace can have", strings.Replace(tenant("username: u, password: p"), "name: t", "name: "+strings.Repeat("a", 64), 1), "at most 63"},
		{"Tenant with a name with dots", strings.Replace(tenant("username: u, password: p"), "name: t", "name: a.b", 1), "no dots"},
	}
}

// Manifests of stackube's users are taken as they are, and a mistake is refused with the field and what would be right.
func TestStackube(t *testing.T) {
	c, err := client.New(server.Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range stackubeManifests() {
		t.Run(m.name, func(t *testing.T) { m.try(t, c) })
	}
	t.Run("stored before", func(t *testing.T) { tenantStoredBefore(t.Context(), t, c) })
}

// A Tenant that was stored before its name was refused can lose its finalizer: otherwise it could never be deleted.
func tenantStoredBefore(ctx context.Context, t *testing.T, c client.Client) {
	const text = "{apiVersion: stackube.kubernetes.io/v1, kind: Tenant, metadata: {name: a.b, namespace: default}, spec: {username: u, password: p}}"
	obj, fresh := object(t, text), object(t, text)
	obj.SetFinalizers([]string{"network.weft.dev/openstack"})
	fresh.SetName("b.c")
	storedBefore(t, c, Neutron, obj, fresh)
	obj.Object["status"] = map[string]any{"state": "Failed"}
	if err := c.Status().Update(ctx, obj); err != nil {
		t.Errorf("writing the status: %v", err)
	}
	obj.SetFinalizers(nil)
	if err := c.Update(ctx, obj); err != nil {
		t.Errorf("removing the finalizer: %v", err)
	}
}
