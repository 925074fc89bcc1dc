package vpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/reach"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// Containers of the manifest, and the pod of the example's NAT gateway.
const (
	namespace     = "weft"
	gatewaySpace  = "kube-system"
	gatewayPod    = "vpc-nat-gw-gw1-0"
	databases     = "weft-ovn-0"
	northbound    = "northbound"
	southbound    = "southbound"
	ovnController = "ovn-controller"
)

// echoPort is where the pods answer.
const echoPort = 7000

// scene is a lab with the objects of the example, and pairs of pods that exchange packets.
type scene struct {
	cluster *lab.Cluster
	kube    kubernetes.Interface
	echoes  []*traffic.Echo
	pairs   []traffic.Pair
	round   int
	// calm is how long the traffic continues after a fault has been repaired.
	calm time.Duration
}

// across has a second Subnet of the example's VPC, and a pod in it.
const across = `
apiVersion: kubeovn.io/v1
kind: Subnet
metadata: {name: across}
spec: {vpc: test-vpc-1, cidrBlock: 10.0.3.0/24, namespaces: [ns1]}
---
apiVersion: v1
kind: Pod
metadata: {name: across, namespace: ns1, annotations: {ovn.kubernetes.io/logical_switch: across}}
spec: {containers: [{name: web, image: "docker.io/library/nginx:alpine"}]}
`

// newScene applies the example, corrects its SNAT rule, and waits until packets arrive. Call close after it, also after an error.
func newScene(ctx context.Context, c *lab.Cluster) (s *scene, err error) {
	s = &scene{cluster: c}
	if s.kube, err = c.Client(); err != nil {
		return s, err
	}
	dir, err := os.MkdirTemp("", "weft-soak")
	if err != nil {
		return s, fmt.Errorf("make a folder for manifests: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "across.yaml")
	if err := os.WriteFile(file, []byte(across), 0o600); err != nil {
		return s, fmt.Errorf("write the second Subnet: %w", err)
	}
	for _, args := range [][]string{
		{"apply", "-f", filepath.Join(c.Config.DeployDir, "examples", "vpc")},
		{"apply", "-f", file},
		{"patch", "iptables-snat-rules", "snat01", "--type=merge", `--patch={"spec":{"internalCIDR":"10.0.1.0/24"}}`},
		{"-n", "ns1", "wait", "--for=condition=Ready", "--timeout=180s", "pod/vpc1-pod", "pod/vpc1-other", "pod/across"},
		{"wait", "--for=condition=Ready", "--timeout=180s", "iptables-eips/eip2", "iptables-snat-rules/snat01", "iptables-fip-rules/fip01"},
	} {
		if _, err := s.kubectl(ctx, args...); err != nil {
			return s, err
		}
	}
	pods, err := reach.Pods(ctx, c, s.kube, "ns1/vpc1-pod", "ns1/vpc1-other", "ns1/across")
	if err != nil {
		return s, err
	}
	for _, netns := range []string{pods["ns1/vpc1-other"].Netns, pods["ns1/across"].Netns, c.External.Netns} {
		echo, err := traffic.NewEcho(netns, netip.AddrPortFrom(netip.IPv4Unspecified(), echoPort))
		if err != nil {
			return s, err
		}
		s.echoes = append(s.echoes, echo)
	}
	at := func(address netip.Addr) netip.AddrPort { return netip.AddrPortFrom(address, echoPort) }
	from := pods["ns1/vpc1-pod"].Netns
	s.pairs = []traffic.Pair{
		{Name: "within a subnet", From: from, To: at(pods["ns1/vpc1-other"].IP)},
		{Name: "across subnets", From: from, To: at(pods["ns1/across"].IP)},
		{Name: "through the gateway", From: from, To: at(c.External.IP)},
		{Name: "to a floating IP", From: c.External.Netns, To: at(netip.MustParseAddr("192.168.100.232"))},
	}
	return s, s.reach(ctx)
}

// close ends the echoes; the pods are removed with the lab.
func (s *scene) close() error {
	var errs []error
	for _, e := range s.echoes {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}

func (s *scene) kubectl(ctx context.Context, args ...string) (string, error) {
	return probe.Run(ctx, s.cluster.Kubectl(args...))
}

// reach waits until every pair exchanges packets.
func (s *scene) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	var errs []error
	for _, pair := range s.pairs {
		if _, err := traffic.Ping(ctx, pair.From, pair.To); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", pair.Name, err))
		}
	}
	return errors.Join(errs...)
}

// container is a container of Weft's manifest, or the NAT gateway's.
type container struct {
	namespace, node, pod, name, id string
	restarts                       int32
}

// String returns the name of a row.
func (c container) String() string { return c.name + " of " + c.pod + " on " + c.node }

// containers returns the containers of Weft's pods and of the NAT gateway's, in a fixed order.
func (s *scene) containers(ctx context.Context) ([]container, error) {
	pods, err := s.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Weft's pods: %w", err)
	}
	gateway, err := s.kube.CoreV1().Pods(gatewaySpace).Get(ctx, gatewayPod, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read pod %s: %w", gatewayPod, err)
	}
	pods.Items = append(pods.Items, *gateway)
	var all []container
	for i := range pods.Items {
		for _, status := range pods.Items[i].Status.ContainerStatuses {
			all = append(all, container{
				namespace: pods.Items[i].Namespace, node: pods.Items[i].Spec.NodeName, pod: pods.Items[i].Name, name: status.Name, restarts: status.RestartCount,
				id: strings.TrimPrefix(status.ContainerID, "containerd://"),
			})
		}
	}
	slices.SortFunc(all, func(a, b container) int { return strings.Compare(a.String(), b.String()) })
	return all, nil
}

// kill kills the processes of a container, and waits until the kubelet has started it again.
func (s *scene) kill(ctx context.Context, c container) error {
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return fmt.Errorf("find the processes of %s: %w", c, err)
	}
	killed := 0
	for _, path := range groups {
		text, err := os.ReadFile(path)
		if err != nil || c.id == "" || !strings.Contains(string(text), c.id) {
			continue // another container's, or it has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return fmt.Errorf("find the processes of %s: %w", c, err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill %s: %w", c, err)
		}
		killed++
	}
	if killed == 0 {
		return fmt.Errorf("%s: %w", c, errNoProcess)
	}
	_, err = probe.Await(ctx, probe.Patience, c.String()+" is ready again", func(ctx context.Context) error {
		pod, err := s.kube.CoreV1().Pods(c.namespace).Get(ctx, c.pod, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read pod %s: %w", c.pod, err)
		}
		for _, status := range pod.Status.ContainerStatuses {
			if status.Name == c.name && status.RestartCount > c.restarts && status.Ready {
				return nil
			}
		}
		return errNotReady
	})
	return err
}

var (
	errNoProcess = errors.New("no process has its control group")
	errNotReady  = errors.New("its container is not ready")
	errThere     = errors.New("the pod still exists")
)

// fresh adds a pod to the VPC, which takes every program of VPCs, and deletes it.
func (s *scene) fresh(ctx context.Context) error {
	s.round++
	pods := s.kube.CoreV1().Pods("ns1")
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("fresh-%d", s.round), Annotations: map[string]string{
			"ovn.kubernetes.io/logical_switch": "net1", "ovn.kubernetes.io/ip_address": "10.0.1.99",
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "docker.io/library/nginx:alpine"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a pod: %w", err)
	}
	_, err = probe.Await(ctx, probe.Patience, "pod "+pod.Name+" runs", func(ctx context.Context) error {
		now, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && now.Status.PodIP == "" {
			err = errNotReady
		}
		return err //nolint:wrapcheck // Await names the pod
	})
	if deletion := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); deletion != nil {
		return errors.Join(err, fmt.Errorf("delete a pod: %w", deletion))
	}
	_, gone := probe.Await(ctx, probe.Patience, "the address of pod "+pod.Name+" is free", func(ctx context.Context) error {
		if _, err := pods.Get(ctx, pod.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return errors.Join(err, errThere)
		}
		out, err := s.kubectl(ctx, "get", "ips", "-o", "jsonpath={.items[*].spec.podName}")
		if err == nil && slices.Contains(strings.Fields(out), pod.Name) {
			err = errThere
		}
		return err
	})
	return errors.Join(err, gone)
}

// rows returns the version of every row of the northbound database, which changes with each write, but those of NB_Global, which counts, and of
// Logical_Switch, which lists ports that come and go.
func (s *scene) rows(ctx context.Context) (map[string]string, error) {
	all := map[string]string{}
	for _, table := range []string{
		"Logical_Router", "Logical_Router_Port", "Logical_Router_Static_Route", "Logical_Router_Policy", "Logical_Switch_Port", "ACL",
	} {
		text, err := s.kubectl(ctx, "-n", namespace, "exec", databases, "-c", northbound, "--", "ovsdb-client", "transact", "unix:/run/ovn/nb.sock",
			`["OVN_Northbound",{"op":"select","table":"`+table+`","where":[],"columns":["_uuid","_version"]}]`)
		if err != nil {
			return nil, err
		}
		var answer []struct {
			Rows []struct {
				UUID    []string `json:"_uuid"`
				Version []string `json:"_version"`
			}
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer) != 1 {
			return nil, fmt.Errorf("rows of %s: %w: %s", table, err, text)
		}
		for _, row := range answer[0].Rows {
			all[table+" "+row.UUID[1]] = row.Version[1]
		}
	}
	return all, nil
}
