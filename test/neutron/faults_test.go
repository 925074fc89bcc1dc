//go:build lab

package neutron

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/openstack"
	weftlab "weft.dev/weft/lab/stack/openstack"
	"weft.dev/weft/test/neutron/cloudfault"
)

// secrets are what no log, event, status and error may hold: passwords, and how Keystone's tokens begin.
func secrets() []string { return []string{tenantPassword, weftlab.AdminPassword, "gAAAA"} }

func holdsSecret(text string) bool {
	return slices.ContainsFunc(secrets(), func(s string) bool { return strings.Contains(text, s) })
}

// untilDone repeats a call as the controller does, until it succeeds, and checks what its errors say.
func untilDone(ctx context.Context, t *testing.T, what string, call func(context.Context) error) {
	t.Helper()
	for try := 1; ; try++ {
		err := call(ctx)
		if err == nil {
			t.Logf("%s: done with try %d", what, try)
			return
		}
		if holdsSecret(err.Error()) {
			t.Errorf("%s: the error holds a password or a token: %v", what, err)
		}
		if !errors.Is(err, errUnderWay) {
			t.Logf("%s: %v", what, err)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not done", what)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// everything is one of each kind of object that Weft makes in OpenStack.
type everything struct {
	c       *cloud.Cloud
	host    string
	project string
	network *cloud.HeldNetwork
}

const (
	faultOwner = "tenant/faults"
	faultName  = "weft-test-faults"
)

func (e *everything) user() cloud.User {
	return cloud.User{Owner: faultOwner, Name: faultName + "-user", Password: tenantPassword, Project: e.project}
}

// balancer is a load balancer with a member for each port.
func (e *everything) balancer() cloud.Balancer {
	return cloud.Balancer{
		Owner: faultOwner, Name: faultName, Project: e.project, Subnet: e.network.Held[0].ID,
		Listeners: []cloud.Listener{{Protocol: "TCP", Port: 80, Members: []cloud.Member{
			{Addr: netip.MustParseAddr("10.244.7.1"), Port: 8080}, {Addr: netip.MustParseAddr("10.244.7.2"), Port: 8080},
		}}},
	}
}

var errUnderWay = errors.New("a change is under way in Octavia")

// ensureBalancer requests from Octavia what is missing of the load balancer, one change after the other.
func (e *everything) ensureBalancer(ctx context.Context) error {
	_, progress, err := e.c.AdvanceBalancer(ctx, e.balancer())
	if err == nil && progress != cloud.InStep {
		err = errUnderWay
	}
	return err
}

func (e *everything) removeBalancer(ctx context.Context) error {
	held, err := e.c.OwnBalancer(ctx, e.project, faultOwner, faultName)
	if errors.Is(err, cloud.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	gone, err := e.c.WithdrawBalancer(ctx, held)
	if err == nil && !gone {
		err = errUnderWay
	}
	return err
}

// ensure makes what is missing.
func (e *everything) ensure(ctx context.Context, t *testing.T) {
	t.Helper()
	untilDone(ctx, t, "project", func(ctx context.Context) (err error) {
		e.project, err = e.c.EnsureProject(ctx, faultOwner, faultName)
		return err
	})
	untilDone(ctx, t, "user", func(ctx context.Context) error { return e.c.EnsureUser(ctx, e.user()) })
	var group string
	untilDone(ctx, t, "group", func(ctx context.Context) (err error) {
		group, err = e.c.EnsureGroup(ctx, cloud.Group{Project: e.project, IPv6: true})
		return err
	})
	untilDone(ctx, t, "network", func(ctx context.Context) (err error) {
		e.network, err = ensureNetwork(ctx, e.c, wanted(e.project))
		return err
	})
	// As the controller does: what there is is read before anything is made.
	untilDone(ctx, t, "ports", func(ctx context.Context) error {
		held, err := e.c.Ports(ctx, e.network.ID)
		if err != nil {
			return err
		}
		for _, p := range held {
			if owner, ours := e.c.OwnerOf(p.Description); ours && owner == "port/faults" {
				return nil
			}
		}
		_, err = e.c.CreatePorts(ctx, cloud.NewPorts{
			Owner: "port/faults", Project: e.project, Network: e.network.ID, Subnet: e.network.Held[0].ID, Host: e.host, Groups: []string{group},
			Addresses: []netip.Addr{netip.MustParseAddr("10.244.7.1"), netip.MustParseAddr("10.244.7.2")},
		})
		return err
	})
	untilDone(ctx, t, "load balancer", e.ensureBalancer)
}

func (e *everything) remove(ctx context.Context, t *testing.T) {
	t.Helper()
	untilDone(ctx, t, "removal of the load balancer", e.removeBalancer)
	untilDone(ctx, t, "removal of the network", func(ctx context.Context) error { return e.c.RemoveNetwork(ctx, e.network) })
	untilDone(ctx, t, "removal of the tenant", func(ctx context.Context) error {
		return e.c.RemoveTenant(ctx, faultOwner, e.user().Name, faultName)
	})
}

// The first writing requests of each kind meet each fault. Whatever OpenStack did before a request failed, calls that are repeated end with
// one object of each kind, then write nothing, and with their removal nothing is left.
func TestFaults(t *testing.T) {
	ctx, plain := connect(t)
	proxy := newWay(t)
	client, err := openstack.New(ctx, adminConf(), openstack.Options{Transport: proxy.Transport()})
	if err != nil {
		t.Fatal(err)
	}
	before, err := cloudfault.Take(ctx, plain)
	if err != nil {
		t.Fatal(err)
	}
	e := &everything{c: cloud.New(client, cloud.Config{Cluster: "test-faults"}), host: cloudFor.nodes[0].Name}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = e.removeBalancer(ctx)
		_ = e.c.RemoveTenant(ctx, faultOwner, e.user().Name, faultName)
	})

	proxy.Choose(cloudfault.Sequence(0))
	e.ensure(ctx, t)
	proxy.Choose(nil)
	held := inventory(ctx, t, plain)
	count := map[string]int{}
	for _, line := range before.More(held) {
		count[strings.Fields(line)[0]]++
	}
	// A router's and a DHCP port belong to Neutron. A project has the security group default besides Weft's.
	for kind, want := range map[string]int{
		"projects": 1, "users": 1, "networks": 1, "subnets": 1, "routers": 1, "loadbalancers": 1, "listeners": 1, "pools": 1,
	} {
		if count[kind] != want {
			t.Errorf("OpenStack has %d %s more than before, want %d: %v", count[kind], kind, want, before.More(held))
		}
	}
	proxy.Taken()
	e.ensure(ctx, t)
	if written := proxy.Taken(); len(written) > 0 {
		t.Errorf("what was in step was written again: %v", written)
	}
	if now := inventory(ctx, t, plain); !slices.Equal(held, now) {
		t.Errorf("in steady state OpenStack changed: %v, %v", held.More(now), now.More(held))
	}

	proxy.Choose(cloudfault.Sequence(1))
	e.remove(ctx, t)
	proxy.Choose(nil)
	for _, f := range cloudfault.Faults() {
		if proxy.Done()[f] == 0 {
			t.Errorf("no request met the fault %q", f)
		}
	}
	if more := before.More(inventory(ctx, t, plain)); len(more) > 0 {
		t.Errorf("OpenStack still has: %v", more)
	}
}

func inventory(ctx context.Context, t *testing.T, c *openstack.Client) cloudfault.Inventory {
	t.Helper()
	taken, err := cloudfault.Take(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return taken
}
