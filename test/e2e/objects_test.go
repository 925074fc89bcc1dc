//go:build lab

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
)

// objects are the resources of one kind.
func objects(t *testing.T, c *lab.Cluster, group, resource string) dynamic.ResourceInterface {
	t.Helper()
	resources, err := probe.Objects(c, group, resource)
	if err != nil {
		t.Fatal(err)
	}
	return resources
}

const network = "network.openshift.io"

// An invalid ClusterNetwork is refused by the API server, with an error that names the field. The controller or the agent reports errors
// that the API server cannot detect. Running pods are not affected.
func TestWrongClusterNetwork(t *testing.T) {
	c := cluster(t)
	tr := newTrio(t, c, "wrong")
	networks := objects(t, c, network, "clusternetworks")
	good, err := networks.Get(t.Context(), networkv1.ClusterNetworkDefault, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { restore(t, networks, good) })
	watch := watchFlows(t, c.Node(1))
	for name, wrong := range map[string]struct{ patch, field string }{
		"no CIDR":                             {`{"clusterNetworks":[{"CIDR":"10.128.0.0/33","hostSubnetLength":9}]}`, "CIDR"},
		"host bits":                           {`{"clusterNetworks":[{"CIDR":"10.128.0.1/14","hostSubnetLength":9}]}`, "CIDR"},
		"words":                               {`{"clusterNetworks":[{"CIDR":"here","hostSubnetLength":9}]}`, "CIDR"},
		"host subnets larger than the range":  {`{"clusterNetworks":[{"CIDR":"10.128.0.0/14","hostSubnetLength":30}]}`, "hostSubnetLength"},
		"host subnets without pod addresses":  {`{"clusterNetworks":[{"CIDR":"10.128.0.0/14","hostSubnetLength":0}]}`, "hostSubnetLength"},
		"ranges overlap":                      {`{"clusterNetworks":[{"CIDR":"10.128.0.0/14","hostSubnetLength":9},{"CIDR":"10.129.0.0/16","hostSubnetLength":9}]}`, "clusterNetworks"},
		"Services' range overlaps the pods'":  {`{"serviceNetwork":"10.130.0.0/16"}`, "serviceNetwork"},
		"no range for Services":               {`{"serviceNetwork":"x"}`, "serviceNetwork"},
		"port out of range":                   {`{"vxlanPort":70000}`, "vxlanPort"},
		"MTU out of range":                    {`{"mtu":70000}`, "mtu"},
		"MTU over the node's":                 {`{"mtu":1500}`, "mtu"},
		"unknown plugin":                      {`{"pluginName":"example/other"}`, "pluginName"},
		"nodes' addresses in the pods' range": {`{"clusterNetworks":[{"CIDR":"10.128.0.0/14","hostSubnetLength":9},{"CIDR":"172.31.0.0/16","hostSubnetLength":9}]}`, "172.31.0.0/16"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			offset := map[string]int{}
			for _, program := range []string{"n1/weft-agent", "weft-controller"} {
				offset[program] = len(logOf(t, c, program))
			}
			_, err := networks.Patch(t.Context(), networkv1.ClusterNetworkDefault, types.MergePatchType, []byte(wrong.patch), metav1.PatchOptions{})
			if err != nil {
				if !strings.Contains(err.Error(), wrong.field) {
					t.Errorf("refused, but the error does not name %q: %v", wrong.field, err)
				}
				return
			}
			defer restore(t, networks, good)
			var said string
			await(t, "a report about "+wrong.field, func(context.Context) error {
				for program, at := range offset {
					for line := range strings.Lines(logOf(t, c, program)[at:]) {
						if strings.Contains(line, wrong.field) && !strings.Contains(line, "level=INFO") {
							said = program + ": " + line
							return nil
						}
					}
				}
				return errors.New("no report")
			})
			t.Logf("accepted by the API server; %s", strings.TrimSpace(said))
		})
	}
	tr.reaches(t, c)
	if err := watch.Check(t.Context(), nil); err != nil {
		t.Error(err)
	}
	addPod(t, c, "n1", "wrong-after")
	t.Logf("flows of running pods: %s", watch)
}

// restore writes an object as it was.
func restore(t *testing.T, resource dynamic.ResourceInterface, good *unstructured.Unstructured) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// The controller writes the object's status concurrently.
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := resource.Get(ctx, good.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		again := good.DeepCopy()
		again.SetResourceVersion(now.GetResourceVersion())
		_, err = resource.Update(ctx, again, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func hostSubnet(name, host, hostIP, subnet string, annotations map[string]string) *unstructured.Unstructured {
	return probe.HostSubnet(name, host, hostIP, subnet, annotations)
}

// createHostSubnet creates a HostSubnet, which is deleted when the test ends. It returns the API server's error.
func createHostSubnet(t *testing.T, resource dynamic.ResourceInterface, object *unstructured.Unstructured) error {
	t.Helper()
	_, err := resource.Create(t.Context(), object, metav1.CreateOptions{})
	t.Cleanup(func() { _ = resource.Delete(context.Background(), object.GetName(), metav1.DeleteOptions{}) })
	return err
}

// A host without a Node gets a subnet on request. Its flows follow its address, and are removed with it.
func TestHostWithoutNode(t *testing.T) {
	c := cluster(t)
	subnets := objects(t, c, network, "hostsubnets")
	const name, first, second = "router.example", "172.31.0.201", "172.31.0.202"
	n := c.Node(1)
	want := settledState(t, n)
	object := hostSubnet(name, name, first, "", map[string]string{networkv1.AnnotationAssignSubnet: "true"})
	if err := createHostSubnet(t, subnets, object); err != nil {
		t.Fatal(err)
	}
	var subnet string
	assigned := await(t, "a subnet for "+name, func(ctx context.Context) error {
		have, err := subnets.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if subnet, _, _ = unstructured.NestedString(have.Object, "subnet"); subnet == "" {
			return fmt.Errorf("the host has no subnet yet")
		}
		return nil
	})
	leads := func(to string, not ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			s := stateOf(ctx, n)
			everything := s["flows"] + s["inet weft"]
			for _, other := range not {
				if strings.Contains(everything, other) {
					return fmt.Errorf("the state of the node still contains %s", other)
				}
			}
			if !strings.Contains(s["flows"], "nw_dst="+subnet) || !strings.Contains(s["flows"], "tun_src="+to) || !strings.Contains(s["inet weft"], to) {
				return fmt.Errorf("no flows for %s to %s, or no rule for it", subnet, to)
			}
			return nil
		}
	}
	programmed := await(t, "flows to "+first, leads(first))
	patch := fmt.Appendf(nil, `{"hostIP":%q}`, second)
	if _, err := subnets.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	moved := await(t, "flows to "+second, leads(second, first))
	if err := subnets.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone := awaitState(t, n, want, name+" was deleted")
	t.Logf("%s assigned after %s, flows after %s, moved after %s, removed after %s", subnet, assigned.Round(time.Millisecond),
		programmed.Round(time.Millisecond), moved.Round(time.Millisecond), gone.Round(time.Millisecond))
}

// An invalid or huge object of one host does not affect others.
func TestWrongHosts(t *testing.T) {
	c := cluster(t)
	tr := newTrio(t, c, "hosts")
	subnets := objects(t, c, network, "hostsubnets")
	watch := watchFlows(t, c.Node(1))
	own, err := subnets.Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	subnet, _, _ := unstructured.NestedString(own.Object, "subnet")
	for name, object := range map[string]*unstructured.Unstructured{
		"no address":               hostSubnet("bad-a", "bad-a", "nowhere", "10.131.0.0/23", nil),
		"no range":                 hostSubnet("bad-b", "bad-b", "172.31.0.203", "10.131.0.0", nil),
		"outside the cluster":      hostSubnet("bad-c", "bad-c", "172.31.0.204", "192.168.0.0/23", nil),
		"a node's subnet":          hostSubnet("bad-d", "bad-d", "172.31.0.205", subnet, nil),
		"a node's address":         hostSubnet("bad-e", "bad-e", c.Node(1).IP.String(), "10.131.2.0/23", nil),
		"a loopback address":       hostSubnet("bad-f", "bad-f", "127.0.0.1", "10.131.4.0/23", nil),
		"the name of another host": hostSubnet("bad-g", "n2", "172.31.0.206", "10.131.6.0/23", nil),
	} {
		if err := createHostSubnet(t, subnets, object); err != nil {
			t.Logf("%s: refused: %v", name, err)
		} else {
			t.Logf("%s: accepted by the API server", name)
		}
	}
	huge := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/huge":%q}}}`, strings.Repeat("x\n\"", 60<<10))
	undo := []byte(`{"metadata":{"annotations":{"example.com/huge":null}}}`)
	for _, resource := range []dynamic.ResourceInterface{subnets, objects(t, c, "", "nodes")} {
		for _, host := range []string{"n1", "n2"} {
			if _, err := resource.Patch(t.Context(), host, types.MergePatchType, huge, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if _, err := resource.Patch(context.Background(), host, types.MergePatchType, undo, metav1.PatchOptions{}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	fresh := addPods(t, c, [2]string{"n1", "hosts-fresh-1"}, [2]string{"n2", "hosts-fresh-2"})
	echo(t, fresh[1].Netns, fresh[1].IPs[0])
	ping(t, fresh[0].Netns, fresh[1].IPs[0])
	tr.reaches(t, c)
	if err := watch.Check(t.Context(), nil); err != nil {
		t.Error(err)
	}
	flows := stateOf(t.Context(), c.Node(1))["flows"]
	for _, bad := range []string{"192.168.0.0", "127.0.0.1,", "172.31.0.205"} {
		if strings.Contains(flows, "tun_src="+bad) || strings.Contains(flows, "nw_dst="+bad) {
			t.Errorf("a flow was added for %s", bad)
		}
	}
}
