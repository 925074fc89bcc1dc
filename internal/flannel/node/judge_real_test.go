//go:build real

package node_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
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
	established, err := connect(spaces["other"], to)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = established.Close() }()
	if err := echoes(established); err != nil {
		t.Fatal(err)
	}
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
}
