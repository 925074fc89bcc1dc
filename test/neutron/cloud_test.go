//go:build lab

package neutron

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/projects"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/routers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/rbacpolicies"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"

	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/conf"
	"weft.dev/weft/internal/neutron/openstack"
	weftlab "weft.dev/weft/lab/stack/openstack"
)

// testTimeout bounds what a test does with OpenStack; machines are busy.
const testTimeout = 8 * time.Minute

func connect(t *testing.T) (context.Context, *openstack.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	client, err := openstack.New(ctx, adminConf(), openstack.Options{Transport: cloudFor.stack.Transport()})
	if err != nil {
		t.Fatal(err)
	}
	return ctx, client
}

func adminConf() conf.Global {
	return conf.Global{
		AuthURL: cloudFor.stack.AuthURL(), Username: weftlab.Admin, Password: weftlab.AdminPassword, TenantName: weftlab.Admin, Region: weftlab.Region,
	}
}

// project makes a project of the test's own.
func project(ctx context.Context, t *testing.T, client *openstack.Client, name string) string {
	t.Helper()
	p, err := projects.Create(ctx, client.Identity, projects.CreateOpts{Name: name}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := projects.Delete(ctx, client.Identity, p.ID).ExtractErr(); err != nil {
			t.Error(err)
		}
	})
	return p.ID
}

func wanted(project string) cloud.Network {
	return cloud.Network{Owner: "test/" + project, Name: "kube-red-red", Project: project, Subnets: []cloud.Subnet{{
		Name: "kube-red-red-subnet", CIDR: netip.MustParsePrefix("10.244.0.0/16"), Gateway: netip.MustParseAddr("10.244.0.1"),
		DNS: []netip.Addr{netip.MustParseAddr("10.244.0.53")},
	}}}
}

// ensureNetwork makes a network, and reads it.
func ensureNetwork(ctx context.Context, c *cloud.Cloud, want cloud.Network) (*cloud.HeldNetwork, error) {
	id, err := c.EnsureNetwork(ctx, want)
	if err != nil {
		return nil, err
	}
	return c.FindNetwork(ctx, "", "", id)
}

func TestNetwork(t *testing.T) {
	ctx, client := connect(t)
	c := cloud.New(client, cloud.Config{Cluster: "test-network"})
	id := project(ctx, t, client, "weft-test-network")
	want := wanted(id)
	first, err := ensureNetwork(ctx, c, want)
	if err != nil {
		t.Fatal(err)
	}
	if first.MTU < 1280 || len(first.Held) != 1 || first.Held[0].GatewayIP != "10.244.0.1" {
		t.Errorf("Neutron has %+v", first)
	}
	// The same again, with other name servers: nothing is made twice.
	want.Subnets[0].DNS = []netip.Addr{netip.MustParseAddr("10.244.0.54")}
	again, err := ensureNetwork(ctx, c, want)
	if err != nil {
		t.Fatal(err)
	}
	if again.ID != first.ID || again.Held[0].ID != first.Held[0].ID || again.Held[0].DNSNameservers[0] != "10.244.0.54" {
		t.Errorf("the second call made %+v of %+v", again, first)
	}
	// A field that is fixed.
	want.Subnets[0].CIDR = netip.MustParsePrefix("10.245.0.0/16")
	if _, err := c.EnsureNetwork(ctx, want); !errors.Is(err, cloud.ErrFixed) {
		t.Errorf("another cidr: %v", err)
	}
	if err := c.RemoveNetwork(ctx, again); err != nil {
		t.Fatal(err)
	}
	nothingLeft(ctx, t, client, c, id)
	if err := c.RemoveNetwork(ctx, again); err != nil {
		t.Errorf("removing it twice: %v", err)
	}
}

// nothingLeft checks that a project has no network and no router.
func nothingLeft(ctx context.Context, t *testing.T, client *openstack.Client, c *cloud.Cloud, project string) {
	t.Helper()
	if _, err := c.FindNetwork(ctx, project, "", ""); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("network of the project: %v", err)
	}
	pages, err := routers.List(client.Network, routers.ListOpts{ProjectID: project}).AllPages(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if rest, err := routers.ExtractRouters(pages); err != nil || len(rest) > 0 {
		t.Errorf("routers of the project: %v %v", rest, err)
	}
}

// A creation that fails half-way leaves nothing: the second subnet overlaps the first.
func TestNetworkRollBack(t *testing.T) {
	ctx, client := connect(t)
	c := cloud.New(client, cloud.Config{Cluster: "test-roll-back"})
	id := project(ctx, t, client, "weft-test-roll-back")
	want := wanted(id)
	want.Subnets = append(want.Subnets, cloud.Subnet{Name: "second", CIDR: netip.MustParsePrefix("10.244.1.0/24")})
	_, err := c.EnsureNetwork(ctx, want)
	if err == nil {
		t.Fatal("overlapping subnets were accepted")
	}
	t.Log(err)
	nothingLeft(ctx, t, client, c, id)
}

// A network of the wanted name that Weft did not make is neither changed nor doubled.
func TestForeignNetwork(t *testing.T) {
	ctx, client := connect(t)
	c := cloud.New(client, cloud.Config{Cluster: "test-foreign"})
	want := wanted(project(ctx, t, client, "weft-test-not-ours"))
	made, err := networks.Create(ctx, client.Network, networks.CreateOpts{Name: want.Name, ProjectID: want.Project}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.EnsureNetwork(ctx, want); !errors.Is(err, cloud.ErrForeign) {
		t.Errorf("error %v, want one that says whose the network is not", err)
	}
	held, err := c.FindNetwork(ctx, want.Project, want.Name, "")
	if err != nil || held.ID != made.ID || len(held.Held) > 0 {
		t.Errorf("OpenStack has %+v: %v", held, err)
	}
	if err := networks.Delete(ctx, client.Network, made.ID).ExtractErr(); err != nil {
		t.Error(err)
	}
}

// Two projects have networks of one name and one range; look-ups without a project say that there are several.
func TestSameNameInTwoProjects(t *testing.T) {
	ctx, client := connect(t)
	c := cloud.New(client, cloud.Config{Cluster: "test-same-name"})
	var nets []*cloud.HeldNetwork
	for _, name := range []string{"weft-test-one", "weft-test-two"} {
		n, err := ensureNetwork(ctx, c, wanted(project(ctx, t, client, name)))
		if err != nil {
			t.Fatal(err)
		}
		nets = append(nets, n)
	}
	if nets[0].ID == nets[1].ID {
		t.Error("two projects share a network")
	}
	if _, err := c.FindNetwork(ctx, "", "kube-red-red", ""); !errors.Is(err, cloud.ErrMultiple) {
		t.Errorf("look-up by name alone: %v", err)
	}
	for _, n := range nets {
		if err := c.RemoveNetwork(ctx, n); err != nil {
			t.Error(err)
		}
	}
}

// A network that is shared with one project is not shared with another, whatever Neutron answers the credentials' project.
func TestSharedWith(t *testing.T) {
	ctx, client := connect(t)
	c := cloud.New(client, cloud.Config{Cluster: "test-shared"})
	owner, other := project(ctx, t, client, "weft-test-shares"), project(ctx, t, client, "weft-test-uses")
	made, err := networks.Create(ctx, client.Network, networks.CreateOpts{Name: "weft-test-shared", ProjectID: owner}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := networks.Delete(ctx, client.Network, made.ID).ExtractErr(); err != nil {
			t.Error(err)
		}
	}()
	for _, with := range []string{client.ProjectID, other, "*"} {
		shared, err := rbacpolicies.Create(ctx, client.Network, rbacpolicies.CreateOpts{
			Action: rbacpolicies.ActionAccessShared, ObjectType: "network", ObjectID: made.ID, TargetTenant: with,
		}).Extract()
		if err != nil {
			t.Fatal(err)
		}
		held, err := c.FindNetwork(ctx, "", "", made.ID)
		if err != nil || held.Shared != (with != other) {
			t.Errorf("shared with %s: Neutron answers %v: %v", with, held.Shared, err)
		}
		if is, err := c.SharedWith(ctx, made.ID, other); err != nil || is != (with != client.ProjectID) {
			t.Errorf("shared with %s: with %s: %v, %v", with, other, is, err)
		}
		if err := rbacpolicies.Delete(ctx, client.Network, shared.ID).ExtractErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// What its project has renamed stays in use, and is removed.
func TestRenamed(t *testing.T) {
	ctx, client := connect(t)
	c := cloud.New(client, cloud.Config{Cluster: "test-renamed"})
	id := project(ctx, t, client, "weft-test-renames")
	want := wanted(id)
	first, err := ensureNetwork(ctx, c, want)
	if err != nil {
		t.Fatal(err)
	}
	pages, err := routers.List(client.Network, routers.ListOpts{ProjectID: id}).AllPages(ctx)
	if err != nil {
		t.Fatal(err)
	}
	found, err := routers.ExtractRouters(pages)
	if err != nil || len(found) != 1 {
		t.Fatalf("routers: %v: %v", found, err)
	}
	name := "mine"
	err = errors.Join(networks.Update(ctx, client.Network, first.ID, networks.UpdateOpts{Name: &name}).Err,
		subnets.Update(ctx, client.Network, first.Held[0].ID, subnets.UpdateOpts{Name: &name}).Err,
		routers.Update(ctx, client.Network, found[0].ID, routers.UpdateOpts{Name: name}).Err)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ensureNetwork(ctx, c, want)
	if err != nil || again.ID != first.ID || len(again.Held) != 1 {
		t.Errorf("after it was renamed: %+v: %v", again, err)
	}
	own, err := c.OwnNetworks(ctx, want.Owner)
	if err != nil || len(own) != 1 {
		t.Fatalf("its own networks: %+v: %v", own, err)
	}
	if err := errors.Join(c.RemoveNetwork(ctx, &own[0]), c.RemoveOwnRouters(ctx, want.Owner)); err != nil {
		t.Error(err)
	}
	nothingLeft(ctx, t, client, c, id)
}

// removeGroups removes what Neutron keeps of a project: its security groups.
func removeGroups(ctx context.Context, t *testing.T, client *openstack.Client, project string) {
	t.Helper()
	pages, err := groups.List(client.Network, groups.ListOpts{ProjectID: project}).AllPages(ctx)
	if err != nil {
		t.Fatal(err)
	}
	found, err := groups.ExtractGroups(pages)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range found {
		if err := groups.Delete(ctx, client.Network, g.ID).ExtractErr(); err != nil {
			t.Error(err)
		}
	}
}
