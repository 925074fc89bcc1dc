//go:build real

package crds

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"weft.dev/weft/internal/apiservertest"
	"weft.dev/weft/internal/testwait"
)

var server *apiservertest.Server //nolint:gochecknoglobals // set once, by TestMain

func TestMain(m *testing.M) {
	os.Exit(apiservertest.MainWith(m, &server, All, Neutron))
}

// object parses a manifest as a user would write it; $ stands for the API group and version.
func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(text, "$", "apiVersion: network.openshift.io/v1")), obj); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return obj
}

type manifest struct {
	name, text string
	refused    string // part of the error; empty: accepted
}

// try creates the object without effect, and fails the test unless the API server answers as the manifest says.
func (m *manifest) try(t *testing.T, c client.Client) {
	t.Helper()
	err := c.Create(t.Context(), object(t, m.text), client.DryRunAll, client.FieldValidation("Strict"))
	switch {
	case m.refused == "" && err != nil:
		t.Errorf("refused: %v", err)
	case m.refused != "" && err == nil:
		t.Error("accepted")
	case m.refused != "" && !strings.Contains(err.Error(), m.refused):
		t.Errorf("refused, but for another reason than %q: %v", m.refused, err)
	case strings.Contains(m.refused, "must") && strings.Contains(err.Error(), "evaluation error"):
		t.Errorf("a rule could not be evaluated: %v", err)
	}
}

func clusterNetwork(fields string) string {
	return "{$, kind: ClusterNetwork, metadata: {name: default}, " + fields + "}"
}

func hostSubnet(fields string) string {
	return "{$, kind: HostSubnet, metadata: {name: node-1.example}, " + fields + "}"
}

func netNamespace(fields string) string {
	return "{$, kind: NetNamespace, metadata: {name: demo}, " + fields + "}"
}

func egress(to string) string {
	return "{$, kind: EgressNetworkPolicy, metadata: {name: fw, namespace: default}, spec: {egress: [" + to + "]}}"
}

const (
	notCanonical = "canonical form"
	goodNetworks = "serviceNetwork: 172.30.0.0/16, clusterNetworks: [{CIDR: 10.128.0.0/14, hostSubnetLength: 9}]"
)

func clusterNetworks() []manifest {
	const service = "serviceNetwork: 172.30.0.0/16, "
	ranges := func(cidr string, length string) string {
		return clusterNetwork(service + "clusterNetworks: [{CIDR: " + cidr + ", hostSubnetLength: " + length + "}]")
	}
	return []manifest{
		{"as OpenShift 4 writes it", `
$
kind: ClusterNetwork
metadata:
  name: default
clusterNetworks:
- CIDR: 10.128.0.0/14
  hostSubnetLength: 9
hostsubnetlength: 9
mtu: 1450
network: 10.128.0.0/14
pluginName: redhat/openshift-ovs-networkpolicy
serviceNetwork: 172.30.0.0/16
vxlanPort: 4789
`, ""},
		{"as OpenShift 3 wrote it", clusterNetwork("network: 10.128.0.0/14, hostsubnetlength: 9, pluginName: redhat/openshift-ovs-subnet, serviceNetwork: 172.30.0.0/16"), ""},
		{"only what is needed", clusterNetwork(goodNetworks), ""},
		{"plugin name in capitals", clusterNetwork(goodNetworks + ", pluginName: RedHat/OpenShift-OVS-Multitenant"), ""},
		{"several ranges", clusterNetwork(service + "clusterNetworks: [{CIDR: 10.128.0.0/14, hostSubnetLength: 9}, {CIDR: 10.132.0.0/14, hostSubnetLength: 8}]"), ""},
		{"smallest subnets", ranges("10.1.0.0/16", "2"), ""},
		{"one subnet", ranges("10.1.0.0/16", "16"), ""},

		{"unknown plugin", clusterNetwork(goodNetworks + ", pluginName: weave"), "must be redhat/openshift-ovs-subnet"},
		{"plugin with something before it", clusterNetwork(goodNetworks + ", pluginName: x-redhat/openshift-ovs-subnet"), "must be redhat/openshift-ovs-subnet"},
		{"no service network", clusterNetwork("clusterNetworks: [{CIDR: 10.128.0.0/14, hostSubnetLength: 9}]"), "serviceNetwork: Required"},
		{"no ranges", clusterNetwork("serviceNetwork: 172.30.0.0/16"), "clusterNetworks needs at least one range"},
		{"empty ranges", clusterNetwork(service + "clusterNetworks: []"), "clusterNetworks needs at least one range"},
		{"network without a length", clusterNetwork(service + "network: 10.128.0.0/14"), "clusterNetworks needs at least one range"},
		{"range without a length", clusterNetwork(service + "clusterNetworks: [{CIDR: 10.128.0.0/14}]"), "hostSubnetLength: Required"},
		{"range without a CIDR", clusterNetwork(service + "clusterNetworks: [{hostSubnetLength: 9}]"), "CIDR: Required"},
		{"octet with a leading zero", ranges("10.128.00.0/14", "9"), notCanonical},
		{"octet 01", ranges("01.128.0.0/14", "9"), notCanonical},
		{"prefix with a leading zero", ranges("10.128.0.0/014", "9"), notCanonical},
		{"host bits", ranges("10.129.2.0/14", "9"), notCanonical},
		{"octet too large", ranges("10.256.0.0/16", "8"), notCanonical},
		{"prefix too long", ranges("10.1.0.0/33", "2"), notCanonical},
		{"no prefix", ranges("10.1.0.0", "8"), notCanonical},
		{"IPv6", ranges(`"fd00::/48"`, "8"), notCanonical},
		{"hostile", ranges(`"10.1.0.0/16\n; rm"`, "8"), notCanonical},
		{"too long", ranges(`"10.1.0.0/16                       "`, "8"), "Too long"},
		{"length 1", ranges("10.128.0.0/14", "1"), "greater than or equal to 2"},
		{"length 31", ranges("0.0.0.0/0", "31"), "less than or equal to 30"},
		{"length that does not fit", ranges("10.1.0.0/16", "17"), "hostSubnetLength does not fit"},
		{"old length that does not fit", clusterNetwork(service + "network: 10.1.0.0/16, hostsubnetlength: 17"), "hostsubnetlength does not fit"},
		{"old network not canonical", clusterNetwork(service + "network: 10.1.1.0/16, hostsubnetlength: 8"), notCanonical},
		{"ranges overlap", clusterNetwork(service + "clusterNetworks: [{CIDR: 10.128.0.0/14, hostSubnetLength: 9}, {CIDR: 10.130.0.0/16, hostSubnetLength: 9}]"), "must not overlap each other"},
		{"ranges equal", clusterNetwork(service + "clusterNetworks: [{CIDR: 10.128.0.0/14, hostSubnetLength: 9}, {CIDR: 10.128.0.0/14, hostSubnetLength: 9}]"), "must not overlap each other"},
		{"service inside a range", clusterNetwork("serviceNetwork: 10.129.0.0/16, clusterNetworks: [{CIDR: 10.128.0.0/14, hostSubnetLength: 9}]"), "serviceNetwork must not overlap"},
		{"range inside service", clusterNetwork("serviceNetwork: 10.0.0.0/8, clusterNetworks: [{CIDR: 10.128.0.0/14, hostSubnetLength: 9}]"), "serviceNetwork must not overlap"},
		{"old network inside service", clusterNetwork("serviceNetwork: 10.0.0.0/8, network: 10.128.0.0/14, hostsubnetlength: 9"), "serviceNetwork must not overlap network"},
		{"service not canonical", clusterNetwork("serviceNetwork: 172.30.1.0/16, clusterNetworks: [{CIDR: 10.128.0.0/14, hostSubnetLength: 9}]"), notCanonical},
		{"network alone beside clusterNetworks", clusterNetwork(goodNetworks + ", network: 10.128.0.0/14"), "both or neither"},
		{"length alone beside clusterNetworks", clusterNetwork(goodNetworks + ", hostsubnetlength: 9"), "both or neither"},
		{"network differs", clusterNetwork(goodNetworks + ", network: 10.124.0.0/14"), "network must be left out or equal"},
		{"hostsubnetlength differs", clusterNetwork(goodNetworks + ", hostsubnetlength: 8"), "hostsubnetlength must be left out or equal"},
		{"port 0", clusterNetwork(goodNetworks + ", vxlanPort: 0"), "greater than or equal to 1"},
		{"port too high", clusterNetwork(goodNetworks + ", vxlanPort: 65536"), "less than or equal to 65535"},
		{"mtu too small", clusterNetwork(goodNetworks + ", mtu: 575"), "greater than or equal to 576"},
		{"mtu too large", clusterNetwork(goodNetworks + ", mtu: 65537"), "less than or equal to 65536"},
		{"wrong type", clusterNetwork(goodNetworks + ", mtu: '1450'"), "must be of type integer"},
	}
}

func hostSubnets() []manifest {
	const good = "host: node-1.example, hostIP: 192.0.2.1, subnet: 10.128.0.0/23"
	return []manifest{
		{"as the controller writes it", hostSubnet(good), ""},
		{"as exported from OpenShift", "{$, kind: HostSubnet, metadata: {name: node-1.example, annotations: {pod.network.openshift.io/node-uid: 5a3b}}, egressCIDRs: [192.0.2.0/24], egressIPs: [192.0.2.50, 192.0.2.51], " + good + "}", ""},
		{"a router outside", `
$
kind: HostSubnet
metadata:
  name: openshift-f5-node
  annotations:
    pod.network.openshift.io/assign-subnet: "true"
    pod.network.openshift.io/fixed-vnid-host: "0"
host: openshift-f5-node
hostIP: 10.3.89.213
`, ""},
		{"empty subnet", hostSubnet("host: node-1.example, hostIP: 192.0.2.1, subnet: ''"), ""},

		{"host of another name", hostSubnet("host: node-2, hostIP: 192.0.2.1, subnet: 10.128.0.0/23"), "host must equal metadata.name"},
		{"no host", hostSubnet("hostIP: 192.0.2.1, subnet: 10.128.0.0/23"), "host: Required"},
		{"capital host", "{$, kind: HostSubnet, metadata: {name: node-1}, host: Node-1, hostIP: 192.0.2.1}", "should match"},
		{"no address", hostSubnet("host: node-1.example, subnet: 10.128.0.0/23"), "hostIP: Required"},
		{"empty address", hostSubnet("host: node-1.example, hostIP: '', subnet: 10.128.0.0/23"), "hostIP"},
		{"loopback", hostSubnet("host: node-1.example, hostIP: 127.0.0.1"), "that other nodes can reach"},
		{"unspecified", hostSubnet("host: node-1.example, hostIP: 0.0.0.0"), "that other nodes can reach"},
		{"broadcast", hostSubnet("host: node-1.example, hostIP: 255.255.255.255"), "that other nodes can reach"},
		{"multicast", hostSubnet("host: node-1.example, hostIP: 224.0.0.1"), "that other nodes can reach"},
		{"address with leading zeros", hostSubnet("host: node-1.example, hostIP: 192.0.02.1"), "without leading zeros"},
		{"IPv6 address", hostSubnet("host: node-1.example, hostIP: 'fd00::1'"), "that other nodes can reach"},
		{"subnet not canonical", hostSubnet("host: node-1.example, hostIP: 192.0.2.1, subnet: 10.128.1.0/23"), notCanonical},
		{"subnet leading zero", hostSubnet("host: node-1.example, hostIP: 192.0.2.1, subnet: 10.128.00.0/23"), notCanonical},
		{"egress IP", hostSubnet(good + ", egressIPs: [192.0.2.256]"), "must be an IPv4 address"},
		{"egress IP leading zero", hostSubnet(good + ", egressIPs: [192.0.2.1, 192.0.02.2]"), "must be an IPv4 address"},
		{"egress CIDR", hostSubnet(good + ", egressCIDRs: [192.0.2.1/24]"), notCanonical},
	}
}

func netNamespaces() []manifest {
	return []manifest{
		{"plain", netNamespace("netname: demo, netid: 12345"), ""},
		{"global", netNamespace("netname: demo, netid: 0"), ""},
		{"as exported from OpenShift", "{$, kind: NetNamespace, metadata: {name: demo, annotations: {netnamespace.network.openshift.io/multicast-enabled: 'true'}}, netname: demo, netid: 16777215, egressIPs: [192.0.2.50]}", ""},
		{"control plane", netNamespace("netname: demo, netid: 1"), ""},

		{"no netid", netNamespace("netname: demo"), "netid: Required"},
		{"no netname", netNamespace("netid: 10"), "netname: Required"},
		{"another's name", netNamespace("netname: other, netid: 10"), "netname must equal metadata.name"},
		{"name with a dot", "{$, kind: NetNamespace, metadata: {name: a.b}, netname: a.b, netid: 10}", "should match"},
		{"25 bits", netNamespace("netname: demo, netid: 16777216"), "less than or equal to 16777215"},
		{"negative", netNamespace("netname: demo, netid: -1"), "greater than or equal to 0"},
		{"egress IP", netNamespace("netname: demo, netid: 10, egressIPs: ['0192.0.2.1']"), "must be an IPv4 address"},
	}
}

func egressPolicies() []manifest {
	return []manifest{
		{"as OpenShift's documentation has it", `
$
kind: EgressNetworkPolicy
metadata:
  name: default
  namespace: default
spec:
  egress:
  - type: Allow
    to:
      cidrSelector: 1.2.3.0/24
  - type: Allow
    to:
      dnsName: www.example.com
  - type: Deny
    to:
      cidrSelector: 0.0.0.0/0
`, ""},
		{"no rules", egress(""), ""},
		{"final dot", egress("{type: Allow, to: {dnsName: www.example.com.}}"), ""},
		{"CIDR with bits right of the prefix", egress("{type: Deny, to: {cidrSelector: 198.51.100.7/24}}"), ""},
		{"0.0.0.0/32", egress("{type: Deny, to: {cidrSelector: 0.0.0.0/32}}"), ""},

		{"AllowX", egress("{type: AllowX, to: {cidrSelector: 0.0.0.0/0}}"), "Unsupported value"},
		{"XDeny", egress("{type: XDeny, to: {cidrSelector: 0.0.0.0/0}}"), "Unsupported value"},
		{"no type", egress("{to: {cidrSelector: 0.0.0.0/0}}"), "type: Required"},
		{"no peer", egress("{type: Deny}"), "to: Required"},
		{"empty peer", egress("{type: Deny, to: {}}"), "exactly one of"},
		{"two peers", egress("{type: Deny, to: {cidrSelector: 1.2.3.0/24, dnsName: example.com}}"), "exactly one of"},
		{"CIDR leading zero", egress("{type: Deny, to: {cidrSelector: 1.2.03.0/24}}"), "must be an IPv4 range"},
		{"CIDR of IPv6", egress("{type: Deny, to: {cidrSelector: 'fd00::/8'}}"), "must be an IPv4 range"},
		{"wildcard", egress("{type: Deny, to: {dnsName: '*.example.com'}}"), "should match"},
		{"no spec", "{$, kind: EgressNetworkPolicy, metadata: {name: fw, namespace: default}}", "spec: Required"},
	}
}

// The API server accepts what OpenShift's users have, and refuses each thing that is wrong, by name.
func TestValidation(t *testing.T) {
	ctx := t.Context()
	c, err := client.New(server.Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for kind, manifests := range map[string][]manifest{
		"ClusterNetwork": clusterNetworks(), "HostSubnet": hostSubnets(),
		"NetNamespace": netNamespaces(), "EgressNetworkPolicy": egressPolicies(),
	} {
		for _, m := range manifests {
			t.Run(kind+"/"+m.name, func(t *testing.T) { m.try(t, c) })
		}
	}
	t.Run("HostSubnet/changes", func(t *testing.T) { hostSubnetChanges(ctx, t, c) })
	t.Run("ClusterNetwork/changes", func(t *testing.T) { clusterNetworkChanges(ctx, t, c) })
	t.Run("ClusterNetwork/stored before", func(t *testing.T) { clusterNetworkStoredBefore(ctx, t, c) })
	t.Run("IptablesEIP/changes", func(t *testing.T) { eipChanges(ctx, t, c) })
	t.Run("Subnet/changes", func(t *testing.T) { subnetChanges(ctx, t, c) })
	t.Run("NodeNetwork/status", func(t *testing.T) { nodeNetworkStatus(ctx, t, c) })
}

// storedBefore creates an object under its definition without rules, and installs the definition as it is, which refuses a fresh object.
func storedBefore(t *testing.T, c client.Client, definitions func() ([]*apiextensionsv1.CustomResourceDefinition, error), obj, fresh client.Object) {
	t.Helper()
	ctx := t.Context()
	all, err := definitions()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return crd.Spec.Names.Kind == obj.GetObjectKind().GroupVersionKind().Kind
	})
	former := all[i].DeepCopy()
	former.Spec.Versions[0].Schema.OpenAPIV3Schema.XValidations = nil
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	installer, err := client.New(server.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	install := func(crd *apiextensionsv1.CustomResourceDefinition) {
		testwait.Eventually(t, "installing the definition", func() error {
			have := &apiextensionsv1.CustomResourceDefinition{}
			if err := installer.Get(ctx, client.ObjectKeyFromObject(crd), have); err != nil {
				return err
			}
			have.Spec = *crd.Spec.DeepCopy()
			return installer.Update(ctx, have)
		})
	}
	try := func() error { return c.Create(ctx, fresh.DeepCopyObject().(client.Object), client.DryRunAll) }
	install(former)
	testwait.Eventually(t, "the former definition", try)
	create(ctx, t, c, obj)
	install(all[i])
	testwait.Eventually(t, "the definition", func() error {
		if err := try(); err == nil {
			return errors.New("a new object of the same fields is accepted")
		}
		return nil
	})
}

// Of an object that was stored before the rule that it breaks, the status can be written, which says what is wrong with it.
func clusterNetworkStoredBefore(ctx context.Context, t *testing.T, c client.Client) {
	obj, fresh := object(t, clusterNetwork(goodNetworks+", hostsubnetlength: 9")), object(t, clusterNetwork(goodNetworks+", hostsubnetlength: 9"))
	fresh.SetName("fresh")
	storedBefore(t, c, All, obj, fresh)
	obj.Object["status"] = map[string]any{"conditions": []any{map[string]any{
		"type": "Valid", "status": "False", "reason": "Invalid", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z",
	}}}
	if err := c.Status().Update(ctx, obj); err != nil {
		t.Errorf("writing the status: %v", err)
	}
	obj.Object["mtu"] = int64(1400)
	if err := c.Update(ctx, obj); err != nil {
		t.Errorf("changing another field: %v", err)
	}
	delete(obj.Object, "hostsubnetlength")
	if err := c.Update(ctx, obj); err != nil {
		t.Errorf("mending it: %v", err)
	}
	obj.Object["hostsubnetlength"] = int64(9)
	if err := c.Update(ctx, obj); err == nil {
		t.Error("once mended, it is taken as it was")
	}
}

// change is a change of a text in the spec of an object; refused is part of the error, empty: it is accepted.
type change struct{ field, value, refused string }

// tryChanges creates the object and makes the changes, each of what the ones before have left.
func tryChanges(ctx context.Context, t *testing.T, c client.Client, obj *unstructured.Unstructured, changes []change) {
	t.Helper()
	create(ctx, t, c, obj)
	for _, change := range changes {
		changed := obj.DeepCopy()
		if err := unstructured.SetNestedField(changed.Object, change.value, "spec", change.field); err != nil {
			t.Fatal(err)
		}
		err := c.Update(ctx, changed)
		if change.refused == "" && err != nil || change.refused != "" && (err == nil || !strings.Contains(err.Error(), change.refused)) {
			t.Errorf("%s %q: %v, want a refusal with %q", change.field, change.value, err, change.refused)
		}
		if err == nil {
			obj = changed
		}
	}
}

// An EIP stays with its gateway and in its external Subnet, where its address was assigned.
func eipChanges(ctx context.Context, t *testing.T, c client.Client) {
	tryChanges(ctx, t, c, object(t, "{apiVersion: kubeovn.io/v1, kind: IptablesEIP, metadata: {name: eip1}, spec: {natGwDp: gw1}}"), []change{
		{"natGwDp", "gw2", "natGwDp cannot be changed"},
		{"externalSubnet", "other", "externalSubnet cannot be changed"},
		{"externalSubnet", "ovn-vpc-external-network", ""}, // the default
		{"externalSubnet", "", ""},
	})
}

// A Subnet stays in its Vpc, once it names one, and a mistake in its range, gateway or route table is refused.
func subnetChanges(ctx context.Context, t *testing.T, c client.Client) {
	tryChanges(ctx, t, c, object(t, "{apiVersion: kubeovn.io/v1, kind: Subnet, metadata: {name: net1}, spec: {cidrBlock: 10.0.1.0/24}}"), []change{
		{"provider", "a.kube-system", ""},
		{"provider", "ovn", ""},
		{"vpc", "ovn-cluster", ""},
		{"vpc", "v", ""},
		{"vpc", "w", `spec.vpc: Invalid value: "object": vpc cannot be changed`},
		{"vpc", "", "vpc cannot be changed"},
		{"provider", "a.kube-system", "provider of a Subnet of a Vpc cannot be changed"},
		{"provider", "", ""},
		{"gateway", "10.0.2.1", `spec.gateway: Invalid value: "object": gateway must be`},
		{"gateway", "10.0.1.254", ""},
		{"cidrBlock", "10.0.1.0/25", `spec.gateway: Invalid value: "object": gateway must be`},
		{"cidrBlock", "10.0.0.0/23", ""},
		{"routeTable", "a b", `spec.routeTable: Invalid value: "string": must be the name`},
		{"routeTable", "blue", ""},
	})
}

// A NodeNetwork has a section for each network, and values are bounded.
func nodeNetworkStatus(ctx context.Context, t *testing.T, c client.Client) {
	obj := &unstructured.Unstructured{}
	obj.SetAPIVersion("network.weft.dev/v1")
	obj.SetKind("NodeNetwork")
	obj.SetName("node-1")
	create(ctx, t, c, obj)
	for name, m := range map[string]struct{ sections, refused string }{
		"all of it": {`[{"name": "overlay", "facts": {"mtu": "1450"}, "conditions": [{"type": "Ready", "status": "True", "reason": "Serving",
			"message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
			{"name": "vpc", "vpc": {"chassis": "node-1", "hostname": "node-1.example", "encapIP": "192.0.2.1",
			"certificate": "-----BEGIN CERTIFICATE-----\nMIIB+/=\n-----END CERTIFICATE-----\n"}},
			{"name": "neutron", "neutron": {"hostname": "node-1", "datapath": "netdev", "problems": ["there is no br-int"]}}]`, ""},
		"one name twice":         {`[{"name": "vpc"}, {"name": "vpc"}]`, "Duplicate value"},
		"no name":                {`[{"facts": {"a": "b"}}]`, "name: Required"},
		"name with a newline":    {`[{"name": "vpc\n"}]`, "should match"},
		"vpc elsewhere":          {`[{"name": "overlay", "vpc": {"chassis": "a"}}]`, "vpc belongs to the section named vpc"},
		"neutron elsewhere":      {`[{"name": "vpc", "neutron": {}}]`, "neutron belongs to the section named neutron"},
		"chassis with a quote":   {`[{"name": "vpc", "vpc": {"chassis": "a\"b"}}]`, "should match"},
		"no chassis":             {`[{"name": "vpc", "vpc": {"hostname": "a"}}]`, "chassis: Required"},
		"address of a tunnel":    {`[{"name": "vpc", "vpc": {"chassis": "a", "encapIP": "192.0.2.01"}}]`, "must be an IP address"},
		"a key for certificate":  {`[{"name": "vpc", "vpc": {"chassis": "a", "certificate": "-----BEGIN PRIVATE KEY-----"}}]`, "should match"},
		"a long fact":            {`[{"name": "vpc", "facts": {"a": "` + strings.Repeat("x", 1025) + `"}}]`, "at most 1024"},
		"two certificates in it": {`[{"name": "vpc", "vpc": {"chassis": "a", "certificate": "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"}}]`, "should match"},
	} {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"status": {"networks": `+m.sections+`}}`))
		err := c.Status().Patch(ctx, obj.DeepCopy(), patch)
		if m.refused == "" && err != nil || m.refused != "" && (err == nil || !strings.Contains(err.Error(), m.refused)) {
			t.Errorf("%s: %v, want a refusal with %q", name, err, m.refused)
		}
	}
}

// create makes an object that goes with the test.
func create(ctx context.Context, t *testing.T, c client.Client, obj client.Object) {
	t.Helper()
	if err := c.Create(ctx, obj); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Delete(context.Background(), obj); err != nil {
			t.Error(err)
		}
	})
}

// A subnet is assigned once; a host's address may change.
func hostSubnetChanges(ctx context.Context, t *testing.T, c client.Client) {
	obj := object(t, "{$, kind: HostSubnet, metadata: {name: node-1}, host: node-1, hostIP: 192.0.2.1}")
	create(ctx, t, c, obj)
	set := func(field, value string) error {
		obj.Object[field] = value
		return c.Update(ctx, obj)
	}
	if err := set("subnet", ""); err != nil {
		t.Errorf("writing the empty subnet: %v", err)
	}
	if err := set("subnet", "10.128.0.0/23"); err != nil {
		t.Errorf("assigning a subnet: %v", err)
	}
	if err := set("hostIP", "192.0.2.2"); err != nil {
		t.Errorf("another address: %v", err)
	}
	for _, subnet := range []string{"10.128.2.0/23", ""} {
		if err := set("subnet", subnet); err == nil || !strings.Contains(err.Error(), "cannot change once it is set") {
			t.Errorf("another subnet %q: %v", subnet, err)
		}
	}
	delete(obj.Object, "subnet")
	if err := c.Update(ctx, obj); err == nil {
		t.Error("the subnet can be removed")
	}
}

// The network may grow and change its mode while it runs.
func clusterNetworkChanges(ctx context.Context, t *testing.T, c client.Client) {
	obj := object(t, clusterNetwork(goodNetworks+", pluginName: redhat/openshift-ovs-subnet"))
	create(ctx, t, c, obj)
	grown := object(t, clusterNetwork("serviceNetwork: 172.30.0.0/16, pluginName: redhat/openshift-ovs-multitenant, clusterNetworks: [{CIDR: 10.128.0.0/13, hostSubnetLength: 9}, {CIDR: 10.0.0.0/16, hostSubnetLength: 8}]"))
	grown.SetResourceVersion(obj.GetResourceVersion())
	if err := c.Update(ctx, grown); err != nil {
		t.Error(err)
	}
	port := func(value any) error {
		changed := grown.DeepCopy()
		if value == nil {
			delete(changed.Object, "vxlanPort")
		} else {
			changed.Object["vxlanPort"] = value
		}
		if err := c.Update(ctx, changed); err != nil {
			return err
		}
		grown = changed
		return nil
	}
	if err := errors.Join(port(int64(4789)), port(nil)); err != nil {
		t.Errorf("the default port, written and left out: %v", err)
	}
	for _, another := range []int64{4790, 1} {
		if err := port(another); err == nil || !strings.Contains(err.Error(), "vxlanPort cannot change") || !strings.Contains(err.Error(), "weft cleanup") {
			t.Errorf("port %d: %v, want a refusal that says what to do", another, err)
		}
	}
}
