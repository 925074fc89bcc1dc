package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

func objects(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	all, err := Objects()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("the manifest has no objects")
	}
	return all
}

// as converts an object, and refuses fields that its type does not have.
func as[T any](t *testing.T, object *unstructured.Unstructured) *T {
	t.Helper()
	typed := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, typed, true); err != nil {
		t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
	}
	return typed
}

// rights are what the manifest lets a service account do: "group/resource[name]" to verbs.
func rights(t *testing.T, account string) map[string][]string {
	t.Helper()
	rules := map[string][]rbacv1.PolicyRule{}
	for _, object := range objects(t) {
		switch object.GetKind() {
		case "ClusterRole", "Role":
			key := object.GetKind() + "/" + object.GetNamespace() + "/" + object.GetName()
			rules[key] = as[rbacv1.ClusterRole](t, &unstructured.Unstructured{Object: object.Object}).Rules
		}
	}
	have := map[string][]string{}
	for _, object := range objects(t) {
		if object.GetKind() != "ClusterRoleBinding" && object.GetKind() != "RoleBinding" {
			continue
		}
		binding := as[rbacv1.RoleBinding](t, object)
		for _, subject := range binding.Subjects {
			if subject.Kind != "ServiceAccount" || subject.Namespace != "weft" {
				t.Errorf("%s %s: binds %s %s", object.GetKind(), object.GetName(), subject.Kind, subject.Name)
			}
			if subject.Name != account {
				continue
			}
			where := ""
			if binding.Namespace != "" {
				where = " in " + binding.Namespace
			}
			bound, ok := rules[binding.RoleRef.Kind+"/"+binding.Namespace+"/"+binding.RoleRef.Name]
			if !ok {
				t.Errorf("%s %s: there is no %s %s", object.GetKind(), object.GetName(), binding.RoleRef.Kind, binding.RoleRef.Name)
			}
			for _, rule := range bound {
				for _, group := range rule.APIGroups {
					for _, resource := range rule.Resources {
						key := group + "/" + resource + strings.Join(rule.ResourceNames, ",") + where
						have[key] = append(have[key], rule.Verbs...)
					}
				}
				if len(rule.NonResourceURLs) > 0 {
					t.Errorf("%s may reach %v", account, rule.NonResourceURLs)
				}
			}
		}
	}
	return have
}

// The rights of each service account, all of them: one more is a decision, told here and in docs/security.md.
func TestRightsAreTheBudget(t *testing.T) {
	read := []string{"get", "list", "watch"}
	for account, want := range map[string]map[string][]string{
		"weft-agent": {
			"network.openshift.io/clusternetworks":       read,
			"network.openshift.io/hostsubnets":           read,
			"network.openshift.io/netnamespaces":         read,
			"network.openshift.io/egressnetworkpolicies": read,
			"network.openshift.io/hostsubnets/status":    {"patch"},
			"network.weft.dev/nodenetworks":              append([]string{"create"}, read...),
			"network.weft.dev/nodenetworks/status":       {"patch"},
			"/nodes":                                     read,
			"/services":                                  read,
			"discovery.k8s.io/endpointslices":            read,
			"/pods":                                      read,
			"/namespaces":                                read,
			"networking.k8s.io/networkpolicies":          read,
			"/nodes/status":                              {"patch"},
			"/events":                                    {"create"},
			"events.k8s.io/events":                       {"create", "patch"},
		},
		"weft-controller": {
			"/nodes": read, "/namespaces": read,
			"network.weft.dev/nodenetworks":                               read,
			"network.openshift.io/clusternetworks":                        append([]string{"create"}, read...),
			"networking.k8s.io/servicecidrs":                              {"get"},
			"/configmaps" + "kube-flannel-cfg":                            {"get"},
			"network.openshift.io/hostsubnets":                            append([]string{"create", "delete", "update"}, read...),
			"network.openshift.io/netnamespaces":                          append([]string{"create", "delete", "update"}, read...),
			"network.openshift.io/clusternetworks/status":                 {"update"},
			"network.openshift.io/hostsubnets/status":                     {"update"},
			"network.openshift.io/netnamespaces/status":                   {"update"},
			"network.openshift.io/egressnetworkpolicies":                  read,
			"network.openshift.io/egressnetworkpolicies/status":           {"update"},
			"events.k8s.io/events":                                        {"create", "patch"},
			"events.k8s.io/events in weft":                                {"create", "patch"},
			"/events in weft":                                             {"create", "patch"},
			"coordination.k8s.io/leases in weft":                          {"create"},
			"coordination.k8s.io/leases" + "weft-controller" + " in weft": {"get", "update"},
		},
	} {
		have := rights(t, account)
		for _, key := range slices.Sorted(maps.Keys(have)) {
			slices.Sort(have[key])
			verbs := slices.Sorted(slices.Values(want[key]))
			if !slices.Equal(have[key], verbs) {
				t.Errorf("%s: %s: it may %v, want %v", account, key, have[key], verbs)
			}
		}
		for key := range want {
			if have[key] == nil {
				t.Errorf("%s: %s: it may do nothing, want %v", account, key, want[key])
			}
		}
	}
}

// Whatever the budget says, these are never in it, whichever networks the chart turns on.
func TestRightsThatNoProgramHas(t *testing.T) {
	for name, manifest := range map[string]func() ([]*unstructured.Unstructured, error){
		"weft.yaml": Objects, "weft-flannel.yaml": FlannelObjects, "weft-vpc.yaml": VPCObjects, "weft-neutron.yaml": NeutronObjects,
	} {
		all, err := manifest()
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range all {
			if !strings.HasSuffix(object.GetKind(), "Role") {
				continue
			}
			for _, rule := range as[rbacv1.ClusterRole](t, object).Rules {
				for _, problem := range excess(rule) {
					t.Errorf("%s: %s %s %s: %v", name, object.GetKind(), object.GetName(), problem, rule)
				}
			}
		}
	}
}

// excess returns what a rule grants that no program may have.
func excess(rule rbacv1.PolicyRule) (problems []string) {
	for _, all := range [][]string{rule.APIGroups, rule.Resources, rule.Verbs} {
		if slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, "*") }) {
			problems = append(problems, "has a wildcard")
		}
	}
	for _, never := range []string{
		"secrets", "pods/exec", "pods/attach", "pods/portforward", "pods/ephemeralcontainers", "nodes/proxy", "serviceaccounts/token",
	} {
		if slices.Contains(rule.Resources, never) {
			problems = append(problems, "names "+never)
		}
	}
	for _, never := range []string{"escalate", "bind", "impersonate", "deletecollection"} {
		if slices.Contains(rule.Verbs, never) {
			problems = append(problems, "may "+never)
		}
	}
	return problems
}

// pods returns the pods' specs by the name of what makes them.
func pods(t *testing.T) map[string]corev1.PodSpec {
	t.Helper()
	all := map[string]corev1.PodSpec{}
	for _, object := range objects(t) {
		switch object.GetKind() {
		case "DaemonSet":
			all[object.GetName()] = as[appsv1.DaemonSet](t, object).Spec.Template.Spec
		case "Deployment":
			all[object.GetName()] = as[appsv1.Deployment](t, object).Spec.Template.Spec
		}
	}
	return all
}

// What containers may do on the node, all of it: named capabilities, and the host's folders.
func TestPodsAreTheBudget(t *testing.T) {
	capabilities := map[string]string{
		"weft-agent/install-plugin":     "DAC_OVERRIDE",
		"weft-agent/agent":              "DAC_OVERRIDE NET_ADMIN NET_RAW SYS_ADMIN",
		"weft-openvswitch/ovsdb-server": "",
		"weft-openvswitch/ovs-vswitchd": "NET_ADMIN NET_RAW",
		"weft-controller/controller":    "",
	}
	paths := map[string]string{
		"weft-agent":       "/etc/cni/net.d /opt/cni/bin /proc/sys/net /run/netns /run/openvswitch /run/weft /var/lib/cni /var/lib/weft",
		"weft-openvswitch": "/dev/net/tun /run/openvswitch /var/lib/weft/openvswitch",
		"weft-controller":  "",
	}
	for name, spec := range pods(t) {
		if spec.HostPID || spec.HostIPC || spec.ShareProcessNamespace != nil {
			t.Errorf("%s shares processes", name)
		}
		if spec.SecurityContext == nil || spec.SecurityContext.SeccompProfile == nil || spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: its seccomp profile is not the runtime's", name)
		}
		var hostPaths []string
		for _, volume := range spec.Volumes {
			if volume.HostPath != nil {
				hostPaths = append(hostPaths, volume.HostPath.Path)
			}
		}
		slices.Sort(hostPaths)
		if have := strings.Join(hostPaths, " "); have != paths[name] {
			t.Errorf("%s has of the host %q, want %q", name, have, paths[name])
		}
		for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
			want, known := capabilities[name+"/"+c.Name]
			if !known {
				t.Errorf("container %s/%s is not in the budget", name, c.Name)
			}
			if err := checkContainer(&c, want); err != nil {
				t.Errorf("%s/%s: %v", name, c.Name, err)
			}
			delete(capabilities, name+"/"+c.Name)
		}
	}
	for container := range capabilities {
		t.Errorf("there is no container %s", container)
	}
	controller := pods(t)["weft-controller"].SecurityContext
	if controller == nil || controller.RunAsNonRoot == nil || !*controller.RunAsNonRoot || controller.RunAsUser == nil || *controller.RunAsUser == 0 {
		t.Error("the controller may run as root")
	}
	if token := pods(t)["weft-openvswitch"].AutomountServiceAccountToken; token == nil || *token {
		t.Error("Open vSwitch has a token of the API server's")
	}
}

func checkContainer(c *corev1.Container, capabilities string) error {
	security := c.SecurityContext
	if security == nil {
		return fmt.Errorf("no security context")
	}
	text, err := json.Marshal(security)
	if err != nil {
		return err
	}
	var added []string
	if security.Capabilities != nil {
		for _, capability := range security.Capabilities.Add {
			added = append(added, string(capability))
		}
	}
	slices.Sort(added)
	switch {
	case security.Privileged != nil && *security.Privileged, security.AllowPrivilegeEscalation == nil || *security.AllowPrivilegeEscalation:
		return fmt.Errorf("it may gain rights: %s", text)
	case security.ReadOnlyRootFilesystem == nil || !*security.ReadOnlyRootFilesystem:
		return fmt.Errorf("its root can be written: %s", text)
	case security.Capabilities == nil || !slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}):
		return fmt.Errorf("it keeps capabilities: %s", text)
	case strings.Join(added, " ") != capabilities:
		return fmt.Errorf("it has %v, want %s", added, capabilities)
	case len(c.Command) == 0 || c.Command[0] != "/weft":
		return fmt.Errorf("it runs %v, not a program of Weft's", c.Command)
	case c.Image != Image:
		return fmt.Errorf("image %s, want %s", c.Image, Image)
	}
	return nil
}

// An agent's upgrade goes node by node, and never touches a switch.
func TestUpgradeStrategy(t *testing.T) {
	for _, object := range objects(t) {
		if object.GetKind() != "DaemonSet" {
			continue
		}
		set := as[appsv1.DaemonSet](t, object)
		want := appsv1.RollingUpdateDaemonSetStrategyType
		if set.Name == "weft-openvswitch" {
			want = appsv1.OnDeleteDaemonSetStrategyType
		}
		if set.Spec.UpdateStrategy.Type != want {
			t.Errorf("%s: %s, want %s", set.Name, set.Spec.UpdateStrategy.Type, want)
		}
	}
}

// The controller runs without kubestack.conf, because it serves other networks too: the statuses of Networks and Tenants report what is
// missing.
func TestControllerRunsWithoutOpenStack(t *testing.T) {
	all, err := NeutronObjects()
	if err != nil {
		t.Fatal(err)
	}
	volumes := 0
	for _, object := range all {
		if object.GetKind() != "Deployment" || object.GetName() != "weft-controller" {
			continue
		}
		for _, v := range as[appsv1.Deployment](t, object).Spec.Template.Spec.Volumes {
			volumes++
			if v.Secret == nil || v.Secret.Optional == nil || !*v.Secret.Optional {
				t.Errorf("volume %s: pods without it do not start: %+v", v.Name, v.VolumeSource)
			}
		}
	}
	if volumes != 1 {
		t.Errorf("the controller has %d volumes, want the Secret's", volumes)
	}
}

// What takes Weft away has the agent's capabilities and no rights in the cluster.
func TestCleanupIsTheBudget(t *testing.T) {
	text, err := os.ReadFile("cleanup.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all, err := Parse(text)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d objects: %v", len(all), err)
	}
	spec := as[appsv1.DaemonSet](t, all[0]).Spec.Template.Spec
	if spec.HostPID || spec.HostIPC || spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken || spec.ServiceAccountName != "" {
		t.Errorf("it shares processes, or has a token: %+v", spec)
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if err := checkContainer(&c, "DAC_OVERRIDE NET_ADMIN SYS_ADMIN"); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
}

func TestParseNamesTheObject(t *testing.T) {
	if _, err := Parse([]byte("a: b\n---\n{")); err == nil || !strings.Contains(err.Error(), "object 1") {
		t.Errorf("%v", err)
	}
}

// What is on the host's network and is asked at a port has that port declared: the scheduler keeps it from other pods.
func TestHostsPortsAreDeclared(t *testing.T) {
	probed := 0
	for _, object := range objects(t) {
		var spec corev1.PodSpec
		switch object.GetKind() {
		case "DaemonSet":
			spec = as[appsv1.DaemonSet](t, object).Spec.Template.Spec
		case "Deployment":
			spec = as[appsv1.Deployment](t, object).Spec.Template.Spec
		}
		for _, container := range spec.Containers {
			for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
				if probe == nil || probe.HTTPGet == nil || !spec.HostNetwork {
					continue
				}
				probed++
				port := probe.HTTPGet.Port.IntVal
				if !slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.ContainerPort == port }) {
					t.Errorf("%s: container %s is asked at port %d, and does not declare it", object.GetName(), container.Name, port)
				}
			}
		}
	}
	if probed < 4 { // two of the agent, two of the controller
		t.Errorf("%d probes found", probed)
	}
}
