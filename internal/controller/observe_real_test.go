//go:build real

package controller

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// freeAddress returns an unused address of the loopback interface.
func freeAddress(t *testing.T) string {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// get sends a request to a replica; an error means no response.
func get(ctx context.Context, url string) (status int, body string, _ error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}

// awaitPage waits until a page has all the lines, and returns it.
func (c *cluster) awaitPage(url string, status int, lines ...string) string {
	c.t.Helper()
	var page string
	c.eventually(url, func() error {
		code, body, err := get(c.t.Context(), url)
		if err != nil {
			return err
		}
		if code != status {
			return fmt.Errorf("status %d, want %d: %s", code, status, body)
		}
		have := strings.Split(body, "\n")
		for _, line := range lines {
			if !slices.ContainsFunc(have, func(h string) bool { return strings.HasPrefix(h, line) }) {
				return fmt.Errorf("no line %s in\n%s", line, body)
			}
		}
		page = body
		return nil
	})
	return page
}

func TestMetricsAndHealth(t *testing.T) {
	c := newCluster(t)
	c.network(networkv1.PluginMultitenant, networkv1.ClusterNetworkEntry{CIDR: "10.1.0.0/28", HostSubnetLength: 2})
	c.node("a", "192.0.2.1")
	bad := c.node("bad", "10.1.0.1")
	leading, scraped, waiting := freeAddress(t), freeAddress(t), freeAddress(t)
	leader := c.start(func(o *Options) { o.HealthAddress, o.MetricsAddress, o.Version = leading, scraped, "v1" })
	c.awaitSubnet("a", "192.0.2.1", "10.1.0.0/30")
	url := "http://" + leading
	c.awaitPage(url+"/readyz", 200, "[+]leader-election", "[+]caches")
	c.awaitPage(url+"/healthz", 200, "[+]ping")
	c.awaitPage(url+"/readyz/api-server", 200, "[+]api-server")
	c.awaitVNID("default", func(networkv1.NetNamespace) bool { return true })
	var all networkv1.NetNamespaceList
	var namespaces corev1.NamespaceList
	c.must(c.List(t.Context(), &namespaces))
	c.eventually("VNIDs", func() error {
		c.must(c.List(t.Context(), &all))
		if len(all.Items) != len(namespaces.Items) {
			return fmt.Errorf("%d of %d", len(all.Items), len(namespaces.Items))
		}
		return nil
	})
	page := c.awaitPage(url+"/metrics", 200,
		`weft_build_info{goversion=`,
		"weft_controller_leader 1",
		"weft_controller_host_subnets 1",
		"weft_controller_free_subnets 3",
		fmt.Sprintf("weft_controller_vnids %d", len(all.Items)),
		`weft_controller_problems{controller="subnets",network="overlay",reason="Incomplete"} 1`,
		fmt.Sprintf(`weft_controller_writes_total{network="overlay",result="ok",verb="create"} %d`, 1+len(all.Items)),
		`weft_controller_writes_total{network="overlay",result="ok",verb="delete"} 0`,
		`weft_controller_reconcile_duration_seconds_count{controller="subnets",network="overlay",result="ok"} `,
		`weft_controller_reconcile_duration_seconds_count{controller="vnids",network="overlay",result="ok"} `,
	)
	if strings.Contains(page, `weft_controller_writes_total{network="overlay",result="ok",verb="status"} 0`) {
		t.Error("the ClusterNetwork's status was written, and is not counted")
	}

	c.address(bad, "192.0.2.9") // the address is corrected, a HostSubnet without a Node is added, and a Node is removed
	c.awaitSubnet("bad", "192.0.2.9", "")
	c.must(c.Create(t.Context(), &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}, Host: "by-hand", HostIP: "192.0.2.40", Subnet: "10.1.0.12/30",
	}))
	page = c.awaitPage("http://"+scraped+"/metrics", 200, "weft_controller_host_subnets 3", "weft_controller_free_subnets 1")
	if strings.Contains(page, "weft_controller_problems{") {
		t.Error("a problem that is solved still counts")
	}
	c.awaitPage("http://"+scraped+"/readyz", 404)
	c.must(c.Delete(t.Context(), bad))
	c.awaitPage(url+"/metrics", 200, "weft_controller_host_subnets 2", "weft_controller_free_subnets 2",
		`weft_controller_writes_total{network="overlay",result="ok",verb="delete"} 1`)

	c.start(func(o *Options) { o.HealthAddress = waiting })
	c.awaitPage("http://"+waiting+"/readyz", 200, "[+]leader-election", "[+]caches")
	if page := c.awaitPage("http://"+waiting+"/metrics", 200, "weft_controller_leader 0"); strings.Contains(page, "weft_controller_free_subnets ") {
		t.Error("a replica that does not lead reports free subnets")
	}
	c.stop(leader)
	c.awaitPage("http://"+waiting+"/metrics", 200, "weft_controller_leader 1", "weft_controller_free_subnets 2")
}

// While the API server does not answer, the replica reports that, and stays ready.
func TestApiServerAwayIsAWarning(t *testing.T) {
	c := newCluster(t)
	c.network(networkv1.PluginSubnet, usualRange())
	leading, waiting := freeAddress(t), freeAddress(t)
	c.start(func(o *Options) { o.HealthAddress = leading })
	c.awaitPage("http://"+leading+"/metrics", 200, "weft_controller_leader 1")
	second := c.start(func(o *Options) { o.HealthAddress = waiting })
	c.awaitPage("http://"+waiting+"/readyz", 200, "[+]leader-election")
	second.cut.Store(true)
	c.awaitPage("http://"+waiting+"/readyz", 200, "[+]leader-election", "[!]api-server: the API server does not answer")
	c.awaitPage("http://"+waiting+"/readyz/api-server", 503, "[-]api-server")
	second.cut.Store(false)
	c.awaitPage("http://"+waiting+"/readyz/api-server", 200, "[+]api-server")
}

// An address that is in use ends the program, with the reason.
func TestHealthAddressThatIsTaken(t *testing.T) {
	c := newCluster(t)
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	c.must(err)
	defer l.Close()
	r := c.start(func(o *Options) { o.HealthAddress = l.Addr().String() })
	select {
	case err := <-r.done:
		if err == nil || !strings.Contains(err.Error(), "health and metrics endpoint") {
			t.Errorf("it ended with %v", err)
		}
		r.done <- err
	case <-time.After(deadline):
		t.Error("it goes on without")
	}
}

// eventsOf returns the number of events by "Kind/name reason", including the repetitions in each event.
func (c *cluster) eventsOf() map[string]int {
	c.t.Helper()
	var list eventsv1.EventList
	c.must(c.List(c.t.Context(), &list, client.InNamespace("default")))
	counts := map[string]int{}
	for i := range list.Items {
		e := &list.Items[i]
		count := 1
		if e.Series != nil {
			count = int(e.Series.Count)
		}
		counts[fmt.Sprintf("%s/%s %s", e.Regarding.Kind, e.Regarding.Name, e.Reason)] += count
	}
	return counts
}

// The events on objects report each change once, and nothing without a change.
func TestEvents(t *testing.T) {
	c := newCluster(t)
	c.network(networkv1.PluginSubnet, networkv1.ClusterNetworkEntry{CIDR: "10.1.0.0/29", HostSubnetLength: 2})
	a := c.node("a", "192.0.2.1")
	c.start(nil)
	first := c.awaitSubnet("a", "192.0.2.1", "10.1.0.0/30")
	c.must(c.Create(t.Context(), &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: "f5", Annotations: map[string]string{networkv1.AnnotationAssignSubnet: "true"}},
		Host:       "f5", HostIP: "192.0.2.50",
	}))
	c.awaitSubnet("f5", "192.0.2.50", "10.1.0.4/30")
	c.awaitEvent("HostSubnet", "f5", "subnet 10.1.0.4/30 is given to f5")
	c.awaitEvent("HostSubnet", "a", "subnet 10.1.0.0/30 is given to a")
	late := c.node("late", "192.0.2.3")
	c.awaitEvent("Node", "late", "add a range to clusterNetworks")
	c.address(a, "192.0.2.11") // no event: the subnet stays
	c.awaitSubnet("a", "192.0.2.11", "10.1.0.0/30")
	c.must(c.Delete(t.Context(), a))
	c.awaitEvent("HostSubnet", "a", "subnet 10.1.0.0/30 is free again: its Node is gone")
	c.awaitSubnet(late.Name, "192.0.2.3", "10.1.0.0/30")
	c.awaitEvent("HostSubnet", "late", "subnet 10.1.0.0/30 is given to late")

	want := map[string]int{
		"HostSubnet/a SubnetGiven": 1, "HostSubnet/a SubnetFreed": 1, "HostSubnet/f5 SubnetGiven": 1,
		"HostSubnet/late SubnetGiven": 1, "Node/late Exhausted": 1,
	}
	wait(t, 3*time.Second) // for resyncs, which are one second apart and leave no trace
	got := c.eventsOf()
	delete(got, "Node/late Incomplete") // sent only if the Node was seen before it had its address
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("events %v, want %v", got, want)
	}
	var list eventsv1.EventList
	c.must(c.List(t.Context(), &list, client.InNamespace("default")))
	for i := range list.Items {
		if e := &list.Items[i]; e.Regarding.Name == "a" && e.Regarding.UID != first.UID {
			t.Errorf("event %s is of another HostSubnet: it would not be shown with it", e.Name)
		}
	}
}
