//go:build real

package controller

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/tenant"
)

// tenants returns a client for requests of an operator.
func (c *cluster) tenants() *tenant.Client {
	c.t.Helper()
	tenants, err := tenant.New(server.Config())
	c.must(err)
	return tenants
}

func named(r tenant.Request, names ...string) tenant.Request {
	r.Namespaces = names
	return r
}

// The controller carries out an operator's request, and the report has the VNIDs before and after.
func TestTenantRequests(t *testing.T) {
	c := newCluster(t)
	c.network(networkv1.PluginMultitenant, usualRange())
	ids := map[string]uint32{}
	for _, name := range []string{"shop", "cart", "stock"} {
		c.namespace(name)
	}
	c.start(nil)
	for _, name := range []string{"shop", "cart", "stock"} {
		ids[name] = c.awaitVNID(name, func(networkv1.NetNamespace) bool { return true }).NetID
	}
	tenants := c.tenants()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ask := func(r tenant.Request) tenant.Report {
		t.Helper()
		report, err := tenants.Change(ctx, r, false, func(string) {})
		c.must(err)
		return report
	}
	show := func(report tenant.Report) string {
		var words []string
		for _, n := range report.Namespaces {
			words = append(words, fmt.Sprintf("%s %d->%d", n.Namespace, n.Was, n.NetID))
		}
		return strings.Join(words, ", ")
	}
	want := fmt.Sprintf("cart %d->%d, stock %d->%d", ids["cart"], ids["shop"], ids["stock"], ids["shop"])
	if got := show(ask(named(tenant.Join("shop"), "stock", "cart", "cart"))); got != want {
		t.Errorf("join: %s, want %s", got, want)
	}
	isolated := ask(named(tenant.Isolate(), "cart"))
	if n := isolated.Namespaces[0]; n.NetID == ids["shop"] || n.NetID == ids["cart"] || n.NetID < networkv1.VNIDMin {
		t.Errorf("isolate: %s", show(isolated))
	}
	if again := ask(named(tenant.Isolate(), "cart")); again.Namespaces[0].NetID != isolated.Namespaces[0].NetID {
		t.Errorf("isolated again: %s", show(again))
	}
	selector, err := labels.Parse("kubernetes.io/metadata.name in (shop, stock)")
	c.must(err)
	global := tenant.Global()
	global.Selector = selector
	if got, want := show(ask(global)), fmt.Sprintf("shop %d->0, stock %d->0", ids["shop"], ids["shop"]); got != want {
		t.Errorf("global: %s, want %s", got, want)
	}
	join := tenant.Join("shop")
	join.Selector = selector
	if got := show(ask(join)); got != "stock 0->0" {
		t.Errorf("join by labels that the target has too: %s", got)
	}
	both := named(global, "shop")
	for words, bad := range map[string]tenant.Request{
		"not both": both, "give the namespaces": tenant.Global(), "namespace default stays global": named(tenant.Join("shop"), "default"),
		`namespace nowhere: there is no NetNamespace`: named(tenant.Join("nowhere"), "shop"), "cannot join itself": named(tenant.Join("shop"), "shop"),
	} {
		if report, err := tenants.Change(ctx, bad, false, func(string) {}); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v %v", words, report, err)
		}
	}
}

// In another mode no request is made.
func TestTenantRequestsNeedTheMode(t *testing.T) {
	c := newCluster(t)
	c.network(networkv1.PluginSubnet, usualRange())
	_, err := c.tenants().Change(t.Context(), named(tenant.Global(), "default"), true, func(string) {})
	if err == nil || !strings.Contains(err.Error(), networkv1.PluginMultitenant) || !strings.Contains(err.Error(), "pluginName") {
		t.Errorf("%v", err)
	}
}

// A request waits until each node's HostSubnet reports that the change is in effect. Hosts that are not nodes do not count. The error names
// the nodes that are missing.
func TestTenantRequestsWaitForNodes(t *testing.T) {
	c := newCluster(t)
	c.network(networkv1.PluginMultitenant, usualRange())
	c.namespace("shop")
	c.start(nil)
	c.node("a", "192.0.2.1")
	c.node("b", "192.0.2.2")
	c.awaitSubnet("a", "192.0.2.1", "10.128.0.0/23")
	c.awaitSubnet("b", "192.0.2.2", "10.129.0.0/23")
	c.awaitVNID("shop", func(networkv1.NetNamespace) bool { return true })
	says := func(node string, version uint64) {
		c.eventually("status of "+node, func() error {
			var hs networkv1.HostSubnet
			if err := c.Get(t.Context(), client.ObjectKey{Name: node}, &hs); err != nil {
				return err
			}
			hs.Status.VNIDsVersion = strconv.FormatUint(version, 10)
			return c.Status().Update(t.Context(), &hs)
		})
	}
	says("a", 1)
	given, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	report, err := c.tenants().Change(given, named(tenant.Global(), "shop"), true, func(what string) {
		if what == "in effect on 0 of 2 nodes" {
			giveUp()
		}
	})
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "a, b") || report.Nodes != 2 || report.Realised != 0 {
		t.Errorf("no node has followed: %+v, %v", report, err)
	}
	nn := c.awaitVNID("shop", func(nn networkv1.NetNamespace) bool { return nn.NetID == 0 })
	version, err := strconv.ParseUint(nn.ResourceVersion, 10, 64)
	c.must(err)
	reported := make(chan string, 10)
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		report, err := c.tenants().Change(ctx, named(tenant.Isolate(), "shop"), true, func(what string) { reported <- what })
		if err == nil && (report.Realised != 2 || report.Nodes != 2) {
			err = fmt.Errorf("%+v", report)
		}
		done <- err
	}()
	awaitReport := func(want string) {
		t.Helper()
		for {
			select {
			case what := <-reported:
				if what == want {
					return
				}
			case err := <-done:
				t.Fatalf("it ended before %q: %v", want, err)
			}
		}
	}
	awaitReport("in effect on 0 of 2 nodes")
	says("a", version+1000)
	awaitReport("in effect on 1 of 2 nodes")
	says("b", version+1000)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
