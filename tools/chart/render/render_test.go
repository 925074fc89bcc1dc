package render

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
)

const (
	chartDir = "../../../deploy/chart"
	crdDir   = "../../../deploy/crds"
)

// The manifests in the tree are what the chart renders.
func TestManifestsAreGenerated(t *testing.T) {
	for _, variant := range Variants() {
		want, err := Manifest(chartDir, variant)
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(filepath.Join("../../../deploy", variant.File))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, want) {
			t.Errorf("deploy/%s is not what deploy/chart renders: run make generate", variant.File)
		}
	}
}

// Helm installs the same definitions as kubectl does, those of others too, and nothing else from their folder.
func TestDefinitions(t *testing.T) {
	c, err := Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(crdDir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d definitions: %v", len(files), err)
	}
	others, err := filepath.Glob("../../../deploy/third-party/*.yaml")
	if err != nil || len(others) == 0 {
		t.Fatalf("%d definitions of others: %v", len(others), err)
	}
	files = append(files, others...)
	have := map[string][]byte{}
	for _, crd := range c.CRDObjects() {
		have[filepath.Base(crd.Filename)] = crd.File.Data
	}
	for _, file := range files {
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have[filepath.Base(file)], want) {
			t.Errorf("%s is not in the chart as it is in %s", filepath.Base(file), crdDir)
		}
	}
	if len(have) != len(files) {
		t.Errorf("the chart has %d definitions, want %d", len(have), len(files))
	}
	for _, file := range c.Raw {
		if strings.HasSuffix(file.Name, ".go") {
			t.Errorf("%s is in the chart", file.Name)
		}
	}
}

// What is set shows where it must; what cannot be set is refused by name.
func TestValues(t *testing.T) {
	for _, c := range []struct {
		name         string
		values       map[string]any
		file, expect string
	}{
		{"image", map[string]any{"image": map[string]any{"repository": "r.example/w", "tag": "v1"}}, "agent.yaml", "image: r.example/w:v1\n"},
		{"image of the controller", map[string]any{"image": map[string]any{"tag": "v1"}}, "controller.yaml", "image: weft.local/weft:v1\n"},
		{"pull secrets", map[string]any{"image": map[string]any{"pullSecrets": []any{"s"}}}, "agent.yaml", "imagePullSecrets:\n        - name: s\n"},
		{"API server, agent", map[string]any{"apiServer": map[string]any{"host": "192.0.2.1"}}, "agent.yaml", `{name: KUBERNETES_SERVICE_HOST, value: "192.0.2.1"}`},
		{"API server, controller", map[string]any{"apiServer": map[string]any{"host": "192.0.2.1", "port": 443}}, "controller.yaml", `{name: KUBERNETES_SERVICE_PORT, value: "443"}`},
		{"datapath", map[string]any{"agent": map[string]any{"datapath": "netdev"}}, "agent.yaml", "--datapath=netdev\n"},
		{"log level", map[string]any{"agent": map[string]any{"logLevel": "debug"}}, "agent.yaml", "--log-level=debug\n"},
		{"traces", map[string]any{"agent": map[string]any{"tracing": map[string]any{"sampling": 0.25}}}, "agent.yaml", "--trace-sampling=0.25\n"},
		{
			"collector",
			map[string]any{"agent": map[string]any{"tracing": map[string]any{"endpoint": "http://192.0.2.1:4318"}}},
			"agent.yaml", `{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: "http://192.0.2.1:4318"}`,
		},
		{"folders", map[string]any{"cni": map[string]any{"binDir": "/var/lib/cni/bin"}}, "agent.yaml", "{path: /var/lib/cni/bin, type"},
		{
			"flannel's annotations", map[string]any{"flannel": map[string]any{"enabled": true, "flags": []any{"--ip-masq"}}},
			"admission.yaml", `"flannel.alpha.coreos.com/" + k`,
		},
		{
			"flannel's annotations of another prefix",
			map[string]any{"flannel": map[string]any{"enabled": true, "flags": []any{"--kube-annotation-prefix=net.example.com/blue", "--ip-masq"}}},
			"admission.yaml", `"net.example.com/blue-" + k`,
		},
		{"switches on all nodes", map[string]any{"ovs": map[string]any{"nodeSelector": map[string]any{"weft.dev/open-vswitch": nil}}}, "openvswitch.yaml", "tolerations"},
	} {
		files, err := Files(chartDir, c.values)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if !strings.Contains(files[c.file], c.expect) {
			t.Errorf("%s: %q is not in %s:\n%s", c.name, c.expect, c.file, files[c.file])
		}
	}
	files, err := Files(chartDir, map[string]any{"ovs": map[string]any{"enabled": false}})
	if err != nil || files["openvswitch.yaml"] != "" || files["namespace.yaml"] != "" {
		t.Errorf("ovs.enabled=false: %v, %q, %q", err, files["openvswitch.yaml"], files["namespace.yaml"])
	}
	for want, values := range map[string]map[string]any{
		"logLevel":   {"agent": map[string]any{"logLevel": "loud"}},
		"datapath":   {"agent": map[string]any{"datapath": "kernel"}},
		"sampling":   {"agent": map[string]any{"tracing": map[string]any{"sampling": 2}}},
		"imaeg":      {"imaeg": map[string]any{}},
		"port":       {"apiServer": map[string]any{"port": 0}},
		"binDir":     {"cni": map[string]any{"binDir": "opt/cni/bin"}},
		"pullPolicy": {"image": map[string]any{"pullPolicy": "sometimes"}},
		"replicas":   {"controller": map[string]any{"replicas": 0}},
		"userCIDR":   {"neutron": map[string]any{"userCIDR": "everywhere"}},
		"1, 3":       {"vpc": map[string]any{"enabled": true, "ovn": map[string]any{"replicas": 2}}},
	} {
		if _, err := Files(chartDir, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want an error that names %s", values, err, want)
		}
	}
}

// args returns the arguments of a container in the first object of a rendered file.
func args(t *testing.T, files map[string]string, file string) []string {
	t.Helper()
	first, _, _ := strings.Cut(files[file], "\n---\n")
	object, err := chartutil.ReadValues([]byte(first))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	found, err := object.PathValue("spec.template.spec.containers")
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	containers, _ := found.([]any)
	if len(containers) != 1 {
		t.Fatalf("%s: %d containers, want one", file, len(containers))
	}
	container, _ := containers[0].(map[string]any)
	list, _ := container["args"].([]any)
	var all []string
	for _, arg := range list {
		text, ok := arg.(string)
		if !ok {
			t.Errorf("%s: argument %v is no text", file, arg)
		}
		all = append(all, text)
	}
	return all
}

// change is how the arguments of a container differ from those with the chart's default values.
type change struct{ less, more []string }

func (c change) of(all []string) []string {
	left := slices.DeleteFunc(slices.Clone(all), func(arg string) bool { return slices.Contains(c.less, arg) })
	return append(left, c.more...)
}

// flagCase are values of the chart, and what they change of the arguments.
type flagCase struct {
	values            string
	agent, controller change
}

// flagCases have every value that becomes a flag.
func flagCases() []flagCase {
	metadata, ports := "--metadata-addresses=169.254.169.254", "--closed-node-ports=22623,22624"
	level, format := "--log-level=info", "--log-format=text"
	openstack := []string{"--neutron-config=/etc/weft/neutron/kubestack.conf", "--neutron-cluster=kubernetes", "--neutron-user-cidr=10.244.0.0/16", "--neutron-user-gateway="}
	return []flagCase{
		{values: "agent: {datapath: system}", agent: change{[]string{"--datapath=auto"}, []string{"--datapath=system"}}},
		{values: "agent: {sparePorts: 0}", agent: change{[]string{"--spare-ports=32"}, []string{"--spare-ports=0"}}},
		{values: "agent: {sparePorts: 1024}", agent: change{[]string{"--spare-ports=32"}, []string{"--spare-ports=1024"}}},
		{values: "agent: {metadataAddresses: []}", agent: change{[]string{metadata}, []string{"--metadata-addresses="}}},
		{
			values: "agent: {metadataAddresses: [169.254.169.254, 100.100.100.200]}",
			agent:  change{[]string{metadata}, []string{"--metadata-addresses=169.254.169.254,100.100.100.200"}},
		},
		{values: "agent: {closedNodePorts: []}", agent: change{[]string{ports}, []string{"--closed-node-ports="}}},
		{values: "agent: {closedNodePorts: [65535, 80]}", agent: change{[]string{ports}, []string{"--closed-node-ports=65535,80"}}},
		{values: "agent: {logLevel: debug}", agent: change{[]string{level}, []string{"--log-level=debug"}}},
		{values: "agent: {logFormat: json}", agent: change{[]string{format}, []string{"--log-format=json"}}},
		{values: "agent: {tracing: {sampling: 1}}", agent: change{nil, []string{"--trace-sampling=1"}}},
		{values: "agent: {tracing: {sampling: 0.001}}", agent: change{nil, []string{"--trace-sampling=0.001"}}},
		{
			values:     "controller: {defaultClusterNetwork: false}",
			controller: change{[]string{"--default-cluster-network=true"}, []string{"--default-cluster-network=false"}},
		},
		{values: "controller: {logLevel: warn}", controller: change{[]string{level}, []string{"--log-level=warn"}}},
		{values: "controller: {logFormat: json}", controller: change{[]string{format}, []string{"--log-format=json"}}},
		{values: "flannel: {enabled: true}", agent: change{nil, []string{"--flannel"}}},
		{values: "flannel: {flags: [--iface=eth1]}"},
		{
			values: "flannel: {enabled: true, flags: [--iface=eth1, --ip-masq]}",
			agent:  change{nil, []string{"--flannel", "--", "--iface=eth1", "--ip-masq"}},
		},
		{
			values: "vpc: {enabled: true}", agent: change{nil, []string{"--vpc", "--ovn-namespace=weft"}},
			controller: change{nil, []string{"--ovn-northbound=configmap"}},
		},
		{values: "neutron: {enabled: true}", agent: change{nil, []string{"--neutron"}}, controller: change{nil, openstack}},
		{values: "neutron: {cluster: blue, userCIDR: 10.9.0.0/16, userGateway: 10.9.0.9, ranges: [10.8.0.0/16], reserved: [10.7.0.0/16]}"},
		{
			values: "neutron: {enabled: true, cluster: blue, userCIDR: 10.9.0.0/16, userGateway: 10.9.0.9, ranges: [10.8.0.0/16, 10.9.0.0/16], reserved: [10.6.0.0/16, 10.7.0.0/16]}",
			agent:  change{nil, []string{"--neutron"}},
			controller: change{nil, []string{
				openstack[0], "--neutron-cluster=blue", "--neutron-user-cidr=10.9.0.0/16", "--neutron-user-gateway=10.9.0.9",
				"--neutron-ranges=10.8.0.0/16,10.9.0.0/16", "--neutron-reserved=10.6.0.0/16,10.7.0.0/16",
			}},
		},
	}
}

// Each value that becomes a flag reaches the flags of the agent or of the controller as it was set, and changes no other flag. What follows --
// is last: it is flanneld's.
func TestFlags(t *testing.T) {
	files, err := Files(chartDir, nil)
	if err != nil {
		t.Fatal(err)
	}
	standard := map[string][]string{
		"agent.yaml": {
			"--proc-sys=/host/proc/sys", "--datapath=auto", "--spare-ports=32", "--metadata-addresses=169.254.169.254",
			"--closed-node-ports=22623,22624", "--log-level=info", "--log-format=text",
		},
		"controller.yaml": {
			"--namespace=weft", "--health-address=127.0.0.1:9479", "--default-cluster-network=true", "--log-level=info", "--log-format=text",
		},
	}
	for file, want := range standard {
		if have := args(t, files, file); !slices.Equal(have, want) {
			t.Errorf("%s by default: %q, want %q", file, have, want)
		}
	}
	for _, c := range flagCases() {
		values, err := chartutil.ReadValues([]byte(c.values))
		if err != nil {
			t.Fatalf("%s: %v", c.values, err)
		}
		files, err := Files(chartDir, values)
		if err != nil {
			t.Errorf("%s: %v", c.values, err)
			continue
		}
		for file, changed := range map[string]change{"agent.yaml": c.agent, "controller.yaml": c.controller} {
			have, want := args(t, files, file), changed.of(standard[file])
			at := slices.Index(want, "--")
			if at >= 0 && (len(have) < len(want)-at || !slices.Equal(have[len(have)-len(want)+at:], want[at:])) {
				t.Errorf("%s: %s: %q, want %q at the end", c.values, file, have, want[at:])
			}
			slices.Sort(have)
			slices.Sort(want)
			if !slices.Equal(have, want) {
				t.Errorf("%s: %s: %q, want %q", c.values, file, have, want)
			}
		}
	}
}

// Every value of the chart that belongs to a program of the nodes or of the cluster is in flagCases, or is here because it becomes no flag.
func TestEveryFlagIsTested(t *testing.T) {
	covered := map[string]bool{}
	for _, name := range []string{
		"agent.resources", "agent.tolerations", "controller.replicas", "controller.resources", "controller.nodeSelector", "controller.tolerations",
		"neutron.secret", "vpc.ovn",
	} {
		covered[name] = true
	}
	for _, c := range flagCases() {
		values, err := chartutil.ReadValues([]byte(c.values))
		if err != nil {
			t.Fatal(err)
		}
		for part := range values {
			table, err := values.Table(part)
			if err != nil {
				t.Fatal(err)
			}
			for name := range table {
				covered[part+"."+name] = true
			}
		}
	}
	c, err := Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"agent", "controller", "flannel", "neutron", "vpc"} {
		values, err := chartutil.Values(c.Values).Table(part)
		if err != nil {
			t.Fatal(err)
		}
		for name := range values {
			if !covered[part+"."+name] {
				t.Errorf("value %s.%s: no test says which flag it becomes", part, name)
			}
		}
	}
}

// OpenStack's networks come with one value. The credentials are a file of the controller's alone, and the definitions are not installed with
// the chart.
func TestNeutron(t *testing.T) {
	files, err := Files(chartDir, map[string]any{"neutron": map[string]any{"enabled": true, "secret": "os", "cluster": "blue"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"--neutron-config=/etc/weft/neutron/kubestack.conf\n", "--neutron-cluster=blue\n", "--neutron-user-cidr=10.244.0.0/16\n",
		"{name: neutron, mountPath: /etc/weft/neutron, readOnly: true}\n", "secret: {secretName: os,", "fsGroup: 65532",
	} {
		if !strings.Contains(files["controller.yaml"], want) {
			t.Errorf("%q is not in controller.yaml:\n%s", want, files["controller.yaml"])
		}
	}
	for name, text := range files {
		if name != "controller.yaml" && strings.Contains(text, "secretName: os") {
			t.Errorf("%s mounts OpenStack's credentials", name)
		}
		if strings.Contains(text, "resources: [secrets") || strings.Contains(text, ", secrets") {
			t.Errorf("%s reads Secrets", name)
		}
		if name != "neutron-rbac.yaml" && strings.Contains(text, "tenants") {
			t.Errorf("%s reads Tenants", name)
		}
	}
	if files["neutron-rbac.yaml"] == "" {
		t.Error("the controller has no rights on Tenants and Networks")
	}
	without, err := Files(chartDir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if without["neutron-rbac.yaml"] != "" || strings.Contains(without["controller.yaml"], "neutron") {
		t.Error("OpenStack's networks are in the chart's default")
	}
}

// Three servers of OVN's databases run on three hosts, start together, and reach the ConfigMap that has their addresses. One is as before.
func TestServersOfOVN(t *testing.T) {
	vpc := func(replicas int) string {
		files, err := Files(chartDir, map[string]any{"vpc": map[string]any{"enabled": true, "ovn": map[string]any{"replicas": replicas}}})
		if err != nil {
			t.Fatal(err)
		}
		return files["ovn.yaml"]
	}
	one, three := vpc(1), vpc(3)
	for _, only := range []string{
		"kind: PodDisruptionBudget", "maxUnavailable: 1\n  selector", "replicas: 3\n", "podManagementPolicy: Parallel", "topologyKey: kubernetes.io/hostname",
		"- --servers=3\n", "- --server=$(POD_NAME)\n", "command: [/weft, ovn, prepare, --servers=3, --server=$(POD_NAME)]", "command: [/weft, ovn, ready, northbound, --servers=3]",
		"command: [/weft, ovn, ready, southbound, --servers=3]", "containerPort: 6643", "verbs: [get, list, watch, patch]",
	} {
		if !strings.Contains(three, only) || strings.Contains(one, only) {
			t.Errorf("%q is not in the pods of three servers only", only)
		}
	}
	if !strings.Contains(one, "replicas: 1\n") {
		t.Error("the default is not one server")
	}
}
