package lab

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"weft.dev/weft/lab/podruntime"
)

// PodSpec describes a pod, in a lab of runtime cni.
type PodSpec struct {
	Node        string // default: the first
	Namespace   string // default "default"; made if missing
	Name        string
	Labels      map[string]string
	Annotations map[string]string
	Ports       []corev1.ContainerPort
	Privileged  bool // its container
	// NoObject attaches a sandbox without making a Pod object, as while the API server is away.
	NoObject     bool
	Args         map[string]string // further CNI_ARGS
	Capabilities map[string]any    // capability arguments
	CNIVersion   string            // replaces the network configuration's
	// Before, if not nil, is called when the pod's network namespace exists, before ADD.
	Before func(*Pod) error
}

// Pod is a running pod: a network namespace on a node.
type Pod struct {
	Namespace, Name, UID string
	Sandbox              podruntime.Sandbox
	Node                 Node
	Netns                string       // path of its network namespace, on the machine
	IPs                  []netip.Addr // from the network plugin's answer
	Result               json.RawMessage
	Took                 time.Duration // of ADD, within libcni
}

// Enter returns the command that runs argv in the pod's network namespace, with the node's files.
func (p *Pod) Enter(argv ...string) []string {
	return append(p.Node.Enter("nsenter", "--net=/run/netns/"+p.Sandbox.ID, "--"), argv...)
}

// RESTConfig returns the administrator's client configuration. It ignores proxies in the environment.
func (c *Cluster) RESTConfig() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig of lab %s: %w", c.Name(), err)
	}
	cfg.Proxy, cfg.QPS, cfg.Burst = nil, 200, 400 // tests add many pods at once
	cfg.Timeout = 30 * time.Second
	return cfg, nil
}

// Client returns a client of the lab's API server.
func (c *Cluster) Client() (kubernetes.Interface, error) {
	cfg, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	k, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server of lab %s: %w", c.Name(), err)
	}
	return k, nil
}

// AddPod starts a pod as a kubelet and its runtime would: the object, the sandbox, ADD through libcni, the status. After an error of the
// network plugin (*podruntime.Failure) the sandbox is kept, as runtimes do, until DelPod.
func (c *Cluster) AddPod(ctx context.Context, spec PodSpec) (*Pod, error) {
	if spec.Namespace == "" {
		spec.Namespace = "default"
	}
	if spec.Node == "" {
		spec.Node = c.nodes[0].Name
	}
	node, err := c.NodeNamed(spec.Node)
	if err != nil {
		return nil, err
	}
	uid := ""
	if !spec.NoObject {
		if uid, err = c.MakeObject(ctx, spec); err != nil {
			return nil, err
		}
	}
	return c.start(ctx, node, spec, uid)
}

// AddAgain starts a pod whose ADD failed, with its object, once its sandbox is detached.
func (c *Cluster) AddAgain(ctx context.Context, spec PodSpec, failed *Pod) (*Pod, error) {
	spec.Namespace = failed.Namespace
	return c.start(ctx, failed.Node, spec, failed.UID)
}

func (c *Cluster) start(ctx context.Context, node Node, spec PodSpec, uid string) (*Pod, error) {
	p, err := node.Attach(ctx, spec, uid)
	if err != nil || spec.NoObject {
		return p, err
	}
	return p, c.setRunning(ctx, p)
}

// Attach starts a sandbox on the node for a pod with this UID ("": a made-up one), without the API server. As with AddPod, a sandbox
// whose ADD failed is kept until Detach.
func (n Node) Attach(ctx context.Context, spec PodSpec, uid string) (*Pod, error) {
	if uid == "" {
		uid = random(16)
	}
	p := &Pod{Namespace: spec.Namespace, Name: spec.Name, Node: n, UID: uid}
	p.Sandbox = podruntime.Sandbox{
		ID: random(32), Namespace: spec.Namespace, Name: spec.Name, UID: p.UID,
		Args: spec.Args, Capabilities: maps.Clone(spec.Capabilities), CNIVersion: spec.CNIVersion,
	}
	if len(spec.Annotations) > 0 { // as containerd and CRI-O pass them
		if p.Sandbox.Capabilities == nil {
			p.Sandbox.Capabilities = map[string]any{}
		}
		p.Sandbox.Capabilities["io.kubernetes.cri.pod-annotations"] = spec.Annotations
	}
	p.Netns = n.Root("/run/netns/" + p.Sandbox.ID)
	if spec.Before != nil {
		if _, err := n.call(ctx, "/prepare", p.Sandbox); err != nil {
			return p, fmt.Errorf("prepare pod %s/%s on %s: %w", p.Namespace, p.Name, n.Name, err)
		}
		if err := spec.Before(p); err != nil {
			return p, err
		}
	}
	a, err := n.call(ctx, "/add", p.Sandbox)
	if err != nil {
		return p, fmt.Errorf("attach pod %s/%s on %s: %w", p.Namespace, p.Name, n.Name, err)
	}
	p.Result, p.Took = a.Result, a.Took
	p.IPs, err = addresses(a.Result)
	return p, err
}

// AddAgain repeats a pod's ADD, as a runtime does that did not get the answer, and returns the new answer.
func (p *Pod) AddAgain(ctx context.Context) (json.RawMessage, error) {
	a, err := p.Node.call(ctx, "/add", p.Sandbox)
	if err != nil {
		return nil, fmt.Errorf("attach pod %s/%s on %s again: %w", p.Namespace, p.Name, p.Node.Name, err)
	}
	return a.Result, nil
}

// DelPod deletes a pod: DEL through libcni, the namespace, the object. It may be repeated.
func (c *Cluster) DelPod(ctx context.Context, p *Pod) error {
	if _, err := p.Node.call(ctx, "/del", p.Sandbox); err != nil {
		return fmt.Errorf("detach pod %s/%s on %s: %w", p.Namespace, p.Name, p.Node.Name, err)
	}
	k, err := c.Client()
	if err != nil {
		return err
	}
	now := int64(0)
	err = k.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// Detach deletes a pod's sandbox but not its object; it needs no API server. It returns how long DEL took.
func (p *Pod) Detach(ctx context.Context) (time.Duration, error) {
	a, err := p.Node.call(ctx, "/del", p.Sandbox)
	return a.Took, err
}

// Check has the network plugin check the pod's interface (CNI CHECK).
func (p *Pod) Check(ctx context.Context) error {
	_, err := p.Node.call(ctx, "/check", p.Sandbox)
	return err
}

// cniNewest is the version of the specification with STATUS and GC: libcni does not call a plugin with them for an older one.
const cniNewest = "1.1.0"

// NetworkStatus has the network plugin check whether it can serve on the node (CNI STATUS).
func (n Node) NetworkStatus(ctx context.Context) error {
	_, err := n.call(ctx, "/status", podruntime.Sandbox{CNIVersion: cniNewest})
	return err
}

// CollectGarbage passes the list of the node's sandboxes to the network plugin (CNI GC).
func (n Node) CollectGarbage(ctx context.Context) error {
	_, err := n.call(ctx, "/gc", podruntime.Sandbox{CNIVersion: cniNewest})
	return err
}

// Pods lists the pods of all nodes, in a lab of runtime cni.
func (c *Cluster) Pods(ctx context.Context) ([]*Pod, error) {
	var pods []*Pod
	for _, n := range c.nodes {
		var boxes []podruntime.Sandbox
		if err := n.ask(ctx, http.MethodGet, "/pods", nil, &boxes); err != nil {
			return nil, err
		}
		for _, b := range boxes {
			pods = append(pods, &Pod{Namespace: b.Namespace, Name: b.Name, UID: b.UID, Sandbox: b, Node: n, Netns: n.Root("/run/netns/" + b.ID)})
		}
	}
	return pods, nil
}

func (n Node) call(ctx context.Context, path string, box podruntime.Sandbox) (podruntime.Answer, error) {
	var a podruntime.Answer
	raw, err := json.Marshal(box)
	if err != nil {
		return a, fmt.Errorf("encode sandbox %s: %w", box.ID, err)
	}
	if err := n.ask(ctx, http.MethodPost, path, bytes.NewReader(raw), &a); err != nil {
		return a, err
	}
	if a.Error != nil {
		return a, a.Error
	}
	return a, nil
}

func (n Node) ask(ctx context.Context, method, path string, body io.Reader, into any) error {
	sock := filepath.Join(n.RunDir, filepath.Base(podruntime.Socket))
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", sock)
	}}}
	req, err := http.NewRequestWithContext(ctx, method, "http://pods"+path, body)
	if err != nil {
		return fmt.Errorf("ask the pod runtime of %s: %w", n.Name, err)
	}
	res, err := hc.Do(req)
	if err != nil {
		return fmt.Errorf("ask the pod runtime of %s: %w (labs of runtime kubelet have none: use kubectl)", n.Name, err)
	}
	defer func() { _ = res.Body.Close() }()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		return fmt.Errorf("read the answer of the pod runtime of %s: %w", n.Name, err)
	}
	return nil
}

// MakeObject makes only a pod's object, for a sandbox that is attached later, and returns its UID.
func (c *Cluster) MakeObject(ctx context.Context, spec PodSpec) (uid string, err error) {
	k, err := c.Client()
	if err != nil {
		return "", err
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: spec.Namespace}}
	if _, err := k.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("make namespace %s: %w", spec.Namespace, err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: spec.Name, Labels: spec.Labels, Annotations: spec.Annotations},
		Spec:       corev1.PodSpec{NodeName: spec.Node, Containers: []corev1.Container{{Name: "main", Image: "lab", Ports: spec.Ports}}},
	}
	if spec.Privileged {
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &spec.Privileged}
	}
	made, err := k.CoreV1().Pods(spec.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("make pod %s/%s: %w", spec.Namespace, spec.Name, err)
	}
	return string(made.UID), nil
}

func (c *Cluster) setRunning(ctx context.Context, p *Pod) error {
	k, err := c.Client()
	if err != nil {
		return err
	}
	st := corev1.PodStatus{Phase: corev1.PodRunning, HostIP: p.Node.IP.String(), Conditions: []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
	}}
	for _, ip := range p.IPs {
		st.PodIPs = append(st.PodIPs, corev1.PodIP{IP: ip.String()})
	}
	if len(p.IPs) > 0 {
		st.PodIP = p.IPs[0].String()
	}
	// A patch, as kubelets send it: an update of the status would remove the labels that it does not contain.
	patch, err := json.Marshal(map[string]any{"status": st})
	if err != nil {
		return fmt.Errorf("encode the status of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	if _, err := k.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("set the status of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

func addresses(result json.RawMessage) ([]netip.Addr, error) {
	var r types100.Result
	if err := json.Unmarshal(result, &r); err != nil {
		return nil, fmt.Errorf("read the network's result: %w", err)
	}
	var ips []netip.Addr
	for _, ip := range r.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			ips = append(ips, a.Unmap())
		}
	}
	return ips, nil
}

func random(bytes int) string {
	raw := make([]byte, bytes)
	_, _ = rand.Read(raw) // never fails
	return hex.EncodeToString(raw)
}
