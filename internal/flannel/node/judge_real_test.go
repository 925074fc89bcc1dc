//go:build real

package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"weft.dev/weft/internal/apiservertest"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/flannel/judge"
	"weft.dev/weft/internal/flannel/node"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/testwait"
)

var server *apiservertest.Server //nolint:gochecknoglobals // set once, by TestMain

func TestMain(m *testing.M) {
	os.Exit(apiservertest.MainWith(m, &server))
}

// podPort is the port on which pods echo what they receive.
const podPort = 8080

// answering is the namespace of a pod that answers.
func answering(t *testing.T) ns.NetNS {
	t.Helper()
	made := space(t)
	err := made.Do(func(ns.NetNS) error {
		l, err := net.Listen("tcp", fmt.Sprint(":", podPort))
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(c, c)
					_ = c.Close()
				}()
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// connect connects from a namespace to a pod.
func connect(from ns.NetNS, to netip.Addr) (net.Conn, error) {
	var c net.Conn
	err := from.Do(func(ns.NetNS) (err error) {
		c, err = net.DialTimeout("tcp", netip.AddrPortFrom(to, podPort).String(), time.Second)
		return err
	})
	return c, err
}

// passes returns nil if a new connection succeeds.
func passes(from ns.NetNS, to netip.Addr) error {
	c, err := connect(from, to)
	if err != nil {
		return err
	}
	return c.Close()
}

// echoes returns nil if a connection still works.
func echoes(c net.Conn) error {
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 1))
	return err
}

func refused(err error) error {
	if err == nil {
		return fmt.Errorf("it passes")
	}
	return nil
}

// enforcing returns a function that creates the judge of node "n" in the calling thread's namespace, which follows the API server's
// objects.
func enforcing(t *testing.T) func() (node.Judge, error) {
	t.Helper()
	return func() (node.Judge, error) {
		types := runtime.NewScheme()
		if err := scheme.AddToScheme(types); err != nil {
			return nil, err
		}
		objects, err := ctrlcache.New(server.Config(), ctrlcache.Options{Scheme: types})
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = objects.Start(ctx)
		}()
		t.Cleanup(func() {
			cancel()
			<-done
		})
		return judge.New("n", "cni0", &network.Deps{Log: slog.New(slog.DiscardHandler), Objects: objects})
	}
}

// TestNetworkPolicies: pods on one node, attached through the agent's handler, reach each other as the API server's NetworkPolicies define,
// and revoked connections end.
func TestNetworkPolicies(t *testing.T) {
	clients, err := kubernetes.NewForConfig(server.Config())
	if err != nil {
		t.Fatal(err)
	}
	s := newStage(t)
	s.judge = enforcing(t)
	ctx := t.Context()
	h := serve(t, s)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "default"}}
	if _, err := clients.CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	spaces, addresses := map[string]ns.NetNS{}, map[string]netip.Addr{}
	for _, name := range []string{"server", "client", "other"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": name}}}
		pod.Spec = corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		if _, err := clients.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		spaces[name] = answering(t)
		result, err := add(t, h, name, spaces[name])
		if err != nil {
			t.Fatal(err)
		}
		addresses[name], _ = netip.AddrFromSlice(result.IPs[0].Address.IP)
		addresses[name] = addresses[name].Unmap()
	}
	to := addresses["server"]
	for _, from := range []string{"client", "other"} {
		testwait.Eventually(t, from+" without a policy", func() error { return passes(spaces[from], to) })
	}
	testwait.Eventually(t, "no chain that pods do not need", func() error { return hooks(s.space, 0, 0) })
	var established net.Conn
	testwait.Eventually(t, "a connection without a policy", func() (err error) {
		established, err = connect(spaces["other"], to)
		return err
	})
	defer func() { _ = established.Close() }()
	testwait.Eventually(t, "an answer on it", func() error { return echoes(established) })
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "server", Namespace: "default"}}
	np.Spec.PodSelector.MatchLabels = map[string]string{"app": "server"}
	np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
		{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}},
	}}}
	if _, err := clients.NetworkingV1().NetworkPolicies("default").Create(ctx, np, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Eventually(t, "the policy ends what it does not allow", func() error { return refused(echoes(established)) })
	testwait.Eventually(t, "the policy refuses", func() error { return refused(passes(spaces["other"], to)) })
	testwait.Eventually(t, "chains for an isolated pod", func() error { return hooks(s.space, 2, 1) })
	testwait.Eventually(t, "the policy allows", func() error { return passes(spaces["client"], to) })
	testwait.Eventually(t, "the other direction", func() error { return passes(spaces["server"], addresses["other"]) })
	// While another program opens the table, connections are opened that the policy does not allow. They end when the table is correct again.
	opened, enough := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(opened)
		for {
			select {
			case <-enough:
				return
			default:
				_ = s.space.Do(func(ns.NetNS) error {
					return exec.Command("nft", "insert rule inet weft-flannel-pods ingress accept").Run()
				})
			}
		}
	}()
	var between net.Conn
	testwait.Eventually(t, "a connection while the table is open", func() (err error) {
		between, err = connect(spaces["other"], to)
		return err
	})
	close(enough)
	<-opened
	defer func() { _ = between.Close() }()
	testwait.Eventually(t, "the connection ends", func() error { return refused(echoes(between)) })
	testwait.Eventually(t, "the policy refuses again", func() error { return refused(passes(spaces["other"], to)) })
	if err := clients.NetworkingV1().NetworkPolicies("default").Delete(ctx, "server", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Eventually(t, "after the policy", func() error { return passes(spaces["other"], to) })
	testwait.Eventually(t, "no chain that pods do not need any more", func() error { return hooks(s.space, 0, 0) })
}

// hooks returns an error unless the judge's tables have that many base chains: for pods, and for the bridge.
func hooks(space ns.NetNS, pods, bridge int) error {
	return space.Do(func(ns.NetNS) error {
		for table, want := range map[string]int{"inet weft-flannel-pods": pods, "bridge weft-flannel-guard": bridge} {
			out, err := exec.Command("nft", "add table "+table+"; list table "+table).CombinedOutput()
			if err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
			if got := strings.Count(string(out), " hook "); got != want {
				return fmt.Errorf("table %s has %d base chains, want %d", table, got, want)
			}
		}
		return nil
	})
}

// TestRefusedChains: the judge does not start if the kernel refuses the chains of its table: without them the pods would be open.
func TestRefusedChains(t *testing.T) {
	s := space(t)
	var j node.Judge
	err := s.Do(func(ns.NetNS) (err error) {
		if out, err := exec.Command("nft", "add table inet weft-flannel-pods; add set inet weft-flannel-pods self4 { type ether_addr; }").CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		j, err = enforcing(t)()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- j.Run(ctx) }()
	<-j.HandedOver()
	if err := j.Admit(ctx, nil); err == nil || !strings.Contains(err.Error(), "weft-flannel-pods") || !strings.Contains(err.Error(), "self4") {
		t.Errorf("admitted with %v", err)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestPlacesOfPods: a policy allows a pod of another node while its address is in that node's range, also if nothing but the Node changes.
func TestPlacesOfPods(t *testing.T) {
	clients, err := kubernetes.NewForConfig(server.Config())
	if err != nil {
		t.Fatal(err)
	}
	s := newStage(t)
	s.judge = enforcing(t)
	ctx := t.Context()
	h := serve(t, s)
	const namespace, elsewhere = "places", "m"
	at := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: elsewhere}}
	selected := map[string]string{"app": "server"}
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "server"}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: selected},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
			{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "remote"}}},
		}}},
	}}
	nodes, pods := clients.CoreV1().Nodes(), clients.CoreV1().Pods(namespace)
	_, err = clients.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err == nil {
		_, err = clients.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	}
	if err == nil {
		at, err = nodes.Create(ctx, at, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = clients.NetworkingV1().NetworkPolicies(namespace).Create(ctx, policy, metav1.CreateOptions{})
	}
	for name, node := range map[string]string{"server": "n", "remote": elsewhere} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}}
		pod.Spec = corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		if err == nil {
			pod, err = pods.Create(ctx, pod, metav1.CreateOptions{})
		}
		if err == nil && node == elsewhere {
			pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.5.9.7", PodIPs: []corev1.PodIP{{IP: "10.5.9.7"}}}
			_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	req := cni.Request{Command: cni.CommandAdd, ContainerID: "server", IfName: "eth0", Netns: space(t).Path(), Args: cni.Args{PodNamespace: namespace, PodName: "server"}, NetConf: &cni.NetConf{}}
	if _, err := h.Add(ctx, &req); err != nil {
		t.Fatal(err)
	}
	allowed := func(want bool) func() error {
		return func() error {
			var table []byte
			err := s.space.Do(func(ns.NetNS) (err error) {
				table, err = exec.Command("nft", "list", "table", "inet", "weft-flannel-pods").CombinedOutput()
				return err
			})
			if err != nil {
				return fmt.Errorf("nft: %w: %s", err, table)
			}
			if !strings.Contains(string(table), "policy-ingress-") || strings.Contains(string(table), "10.5.9.7") != want {
				return errors.New(string(table))
			}
			return nil
		}
	}
	testwait.Eventually(t, "the policy is in effect, and the node has no range", allowed(false))
	at.Spec.PodCIDR, at.Spec.PodCIDRs = "10.5.9.0/24", []string{"10.5.9.0/24"}
	if _, err := nodes.Update(ctx, at, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Eventually(t, "the pod is in the node's range", allowed(true))
	if err := nodes.Delete(ctx, elsewhere, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Eventually(t, "the node is gone", allowed(false))
}
