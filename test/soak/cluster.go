package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/apifront"
	"weft.dev/weft/test/soak/losses"
)

const (
	// guest is a host without a Node, which is added and deleted; guestSubnet is the subnet that it requests.
	guest, guestIP, guestSubnet = "guest.example", "172.31.0.201", "10.131.250.0/23"
	// networkGroup is the API group of Weft's objects.
	networkGroup = "network.openshift.io"
)

// apiFaults are the faults of the API server, or of the path to it.
func apiFaults() []fault {
	front := func(name string, seen bool, how apifront.Answer) fault {
		return fault{name: name, spares: losses.All, kills: []string{"weft-controller"}, do: func(ctx context.Context, s *soak, n lab.Node) (string, error) {
			return s.behindFront(ctx, n, how, seen)
		}}
	}
	return []fault{
		front("API server slow: a second for each request", true, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			select {
			case <-time.After(time.Second):
				next.ServeHTTP(w, r)
			case <-r.Context().Done():
			}
		}),
		front("API server fails every request (500)", false, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			status(w, metav1.StatusReasonInternalError, http.StatusInternalServerError)
		}),
		front("API server rejects every request as too many (429)", false, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Retry-After", "1")
			status(w, metav1.StatusReasonTooManyRequests, http.StatusTooManyRequests)
		}),
		front("API server forbids everything (403)", false, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			status(w, metav1.StatusReasonForbidden, http.StatusForbidden)
		}),
		front("watches refused as expired (410)", false, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.URL.Query().Get("watch") == "true" {
				status(w, metav1.StatusReasonExpired, http.StatusGone)
				return
			}
			next.ServeHTTP(w, r)
		}),
		front("watches that expire after half a second", true, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.URL.Query().Get("watch") != "true" {
				next.ServeHTTP(w, r)
				return
			}
			short, cancel := context.WithTimeout(r.Context(), 500*time.Millisecond)
			defer cancel()
			next.ServeHTTP(w, r.WithContext(short))
		}),
		front("API server answers garbage", false, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"kind":"List","items":[{"metadata":{"name":`)) // truncated on purpose
		}),
		front("API server never answers", false, func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
			<-r.Context().Done()
		}),
		{name: "connections to the API server cut repeatedly", spares: losses.All, kills: []string{"weft-controller"}, do: cutOver},
		{name: "agent restarted while the API server is slow", spares: losses.All, kills: []string{"weft-controller", "n1/weft-agent"}, do: restartSlow},
		{name: "agent restarted while the API server fails", spares: losses.All, kills: []string{"weft-controller", "n1/weft-agent"}, do: restartFailing},
	}
}

// status writes an error in the API server's form.
func status(w http.ResponseWriter, reason metav1.StatusReason, code int32) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(code))
	_ = json.NewEncoder(w).Encode(metav1.Status{ // a client that has closed the connection needs no answer
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Reason: reason, Code: code, Message: "so the soak has it",
	})
}

// frontTime is the minimum duration of an API server's fault.
const frontTime = 4 * time.Second

// behindFront adds a host while the API server answers with how, and adds and deletes pods. If seen, the host's flows must be programmed
// during the fault; else as soon as it is over.
func (s *soak) behindFront(ctx context.Context, n lab.Node, how apifront.Answer, seen bool) (note string, err error) {
	f, err := apifront.Open(ctx, s.cluster, how)
	if err != nil {
		return "", err
	}
	over := time.After(frontTime)
	open := true
	defer func() {
		if open {
			err = errors.Join(err, f.Close(ctx))
		}
	}()
	hosts, err := s.guestComes(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, guestGoes(ctx, hosts)) }()
	if err := s.cast.fresh(ctx, n.Name, "behind"); err != nil {
		return "", err
	}
	if seen {
		if err := s.guestSeen(ctx, n); err != nil {
			return "", err
		}
	}
	select {
	case <-over:
	case <-ctx.Done():
	}
	open = false
	if err := f.Close(ctx); err != nil {
		return "", err
	}
	begun := time.Now()
	if err := s.guestSeen(ctx, n); err != nil {
		return "", err
	}
	return "engines in step " + time.Since(begun).Round(time.Millisecond).String() + " after the fault was over", nil
}

// guestComes makes a HostSubnet for a host without a Node.
func (s *soak) guestComes(ctx context.Context) (dynamic.ResourceInterface, error) {
	hosts, err := probe.Objects(s.cluster, networkGroup, "hostsubnets")
	if err != nil {
		return nil, err
	}
	_, err = hosts.Create(ctx, probe.HostSubnet(guest, guest, guestIP, guestSubnet, nil), metav1.CreateOptions{})
	return hosts, err
}

func guestGoes(ctx context.Context, hosts dynamic.ResourceInterface) error {
	err := hosts.Delete(context.WithoutCancel(ctx), guest, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// guestSeen waits until a node has the flows of the host without a Node.
func (s *soak) guestSeen(ctx context.Context, n lab.Node) error { return s.seen(ctx, n, guestIP) }

// seen waits until a node accepts tunnel packets from an address.
func (s *soak) seen(ctx context.Context, n lab.Node, address string) error {
	_, err := probe.Await(ctx, recoveryTime, "flows for "+address+" on "+n.Name, func(ctx context.Context) error {
		if !strings.Contains(probe.StateIn(ctx, n, "flows"), "tun_src="+address) {
			return errors.New("there are no flows")
		}
		return nil
	})
	return err
}

// cutOver closes all connections ten times per second.
func cutOver(ctx context.Context, s *soak, n lab.Node) (note string, err error) {
	f, err := apifront.Open(ctx, s.cluster, func(w http.ResponseWriter, r *http.Request, next http.Handler) { next.ServeHTTP(w, r) })
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close(ctx)) }()
	cuts := 0
	for range int(frontTime / (100 * time.Millisecond)) {
		<-time.After(100 * time.Millisecond)
		f.Cut()
		cuts++
	}
	return fmt.Sprintf("%d times", cuts), s.cast.fresh(ctx, n.Name, "cut")
}

// restartSlow restarts an agent while each request takes a second.
func restartSlow(ctx context.Context, s *soak, n lab.Node) (note string, err error) {
	f, err := apifront.Open(ctx, s.cluster, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		<-time.After(time.Second)
		next.ServeHTTP(w, r)
	})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close(ctx)) }()
	begun := time.Now()
	old, err := probe.Signal(ctx, s.cluster, agentOf(n), syscall.SIGKILL)
	if err != nil {
		return "", err
	}
	err = s.awaitAgent(ctx, n, old)
	return "served after " + time.Since(begun).Round(time.Millisecond).String(), err
}

// restartFailing restarts an agent while the API server fails: the agent changes nothing, and refuses ADD.
func restartFailing(ctx context.Context, s *soak, n lab.Node) (note string, err error) {
	want, err := probe.SettledState(ctx, n)
	if err != nil {
		return "", err
	}
	f, err := apifront.Open(ctx, s.cluster, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		status(w, metav1.StatusReasonInternalError, http.StatusInternalServerError)
	})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close(ctx)) }()
	if err := probe.Kill(ctx, s.cluster, agentOf(n), syscall.SIGKILL); err != nil {
		return "", err
	}
	over := time.After(frontTime)
	for range 5 {
		p, err := s.cluster.AddPod(ctx, lab.PodSpec{Node: n.Name, Name: "early", NoObject: true})
		if failure, known := probe.AsFailure(err); !known || failure.Code != probe.CodeTryAgain {
			return "", fmt.Errorf("ADD while the agent has no connection to the API server: %w, want code %d", err, probe.CodeTryAgain)
		}
		note = err.Error()
		if err := probe.Detach(ctx, p); err != nil {
			return "", err
		}
	}
	select {
	case <-over:
	case <-ctx.Done():
	}
	return note, probe.StateOf(ctx, n).Differs(want)
}

// clusterFaults are the faults of the control plane and of its objects.
func clusterFaults() []fault {
	kill := func(name string) fault {
		return fault{name: name + " killed", spares: losses.All, kills: []string{name, "weft-controller", "kube-apiserver"}, do: func(ctx context.Context, s *soak, _ lab.Node) (string, error) {
			return "", probe.Kill(ctx, s.cluster, name, syscall.SIGKILL)
		}}
	}
	return []fault{
		kill("kube-apiserver"), kill("etcd"), kill("weft-controller"),
		{name: "the controller hangs", spares: losses.All, kills: []string{"weft-controller"}, do: func(ctx context.Context, s *soak, _ lab.Node) (string, error) {
			return "", s.hang(ctx, "weft-controller", 5*time.Second, func() error { return nil })
		}},
		{name: "a host without a node is added, moved and deleted", spares: losses.All, do: guestMoves},
		{name: "two hosts have one address for a while", spares: losses.All, do: sameAddress},
		{name: "invalid objects", spares: losses.All, do: wrongObjects},
		{name: "a change of the tunnels' port, refused", spares: losses.All, do: otherPort},
		{name: "a node's address changed and changed back", spares: losses.Local, do: otherNodeAddress},
	}
}

func guestMoves(ctx context.Context, s *soak, n lab.Node) (note string, err error) {
	hosts, err := s.guestComes(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, guestGoes(ctx, hosts)) }()
	if err := s.guestSeen(ctx, n); err != nil {
		return "", err
	}
	const moved = "172.31.0.202"
	if _, err := hosts.Patch(ctx, guest, types.MergePatchType, fmt.Appendf(nil, `{"hostIP":%q}`, moved), metav1.PatchOptions{}); err != nil {
		return "", err
	}
	return "", s.seen(ctx, n, moved)
}

// sameAddress makes a host's object again under another name before the old one is deleted: two objects have one address, and deleting
// one must not remove the other's flows.
func sameAddress(ctx context.Context, s *soak, n lab.Node) (note string, err error) {
	hosts, err := s.guestComes(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, guestGoes(ctx, hosts)) }()
	const twin, twinSubnet = "twin.example", "10.131.252.0/23"
	if _, err := hosts.Create(ctx, probe.HostSubnet(twin, twin, guestIP, twinSubnet, nil), metav1.CreateOptions{}); err != nil {
		return "", err
	}
	defer func() {
		err = errors.Join(err, hosts.Delete(context.WithoutCancel(ctx), twin, metav1.DeleteOptions{}))
	}()
	leads := func(subnet string, want bool) error {
		_, err := probe.Await(ctx, recoveryTime, "flows to "+subnet, func(ctx context.Context) error {
			if flows := probe.StateIn(ctx, n, "flows"); strings.Contains(flows, "nw_dst="+subnet) != want || want && !strings.Contains(flows, "tun_src="+guestIP) {
				return fmt.Errorf("the flows are there: %v", !want)
			}
			return nil
		})
		return err
	}
	if err := errors.Join(leads(guestSubnet, true), leads(twinSubnet, true)); err != nil {
		return "", err
	}
	return "", errors.Join(guestGoes(ctx, hosts), leads(guestSubnet, false), leads(twinSubnet, true))
}

// wrongObjects writes invalid objects; agents ignore those that the API server accepts.
func wrongObjects(ctx context.Context, s *soak, n lab.Node) (note string, err error) {
	hosts, err := probe.Objects(s.cluster, networkGroup, "hostsubnets")
	if err != nil {
		return "", err
	}
	own, err := hosts.Get(ctx, "n1", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	subnet, _, _ := unstructured.NestedString(own.Object, "subnet")
	taken := 0
	for i, object := range []*unstructured.Unstructured{
		probe.HostSubnet("bad-0", "bad-0", "nowhere", "10.131.0.0/23", nil),
		probe.HostSubnet("bad-1", "bad-1", "172.31.0.203", "10.131.0.0", nil),
		probe.HostSubnet("bad-2", "bad-2", "172.31.0.204", "192.168.0.0/23", nil),
		probe.HostSubnet("bad-3", "bad-3", "172.31.0.205", subnet, nil),
		probe.HostSubnet("bad-4", "bad-4", n.IP.String(), "10.131.2.0/23", nil),
		probe.HostSubnet("bad-5", "n2", "172.31.0.206", "10.131.6.0/23", nil),
	} {
		if _, createErr := hosts.Create(ctx, object, metav1.CreateOptions{}); createErr != nil {
			continue // a refusal is correct too
		}
		taken++
		defer func() {
			err = errors.Join(err, hosts.Delete(context.WithoutCancel(ctx), fmt.Sprintf("bad-%d", i), metav1.DeleteOptions{}))
		}()
	}
	if err := s.cast.fresh(ctx, n.Name, "wrong"); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d of 6 accepted by the API server", taken), s.cast.reach(ctx)
}

// otherPort tries to change the tunnels' port while everything runs: the change is refused, and the port stays the same.
func otherPort(ctx context.Context, s *soak, _ lab.Node) (note string, err error) {
	networks, err := probe.Objects(s.cluster, networkGroup, "clusternetworks")
	if err != nil {
		return "", err
	}
	_, err = networks.Patch(ctx, networkv1.ClusterNetworkDefault, types.MergePatchType, []byte(`{"vxlanPort":4790}`), metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) {
		return "", fmt.Errorf("another vxlanPort: %w, want a refusal", err)
	}
	for _, n := range s.cluster.Nodes() {
		if err := probe.TunnelsAt(ctx, n, 4789); err != nil {
			return "", err
		}
	}
	return "", s.cast.reach(ctx)
}

// otherNodeAddress gives the second node another address, as an administrator would, and then the old one again.
func otherNodeAddress(ctx context.Context, s *soak, n lab.Node) (note string, err error) {
	n2 := s.cluster.Node(2)
	was, now := n2.IP.String(), "172.31.0.102"
	defer func() {
		err = errors.Join(err, s.readdress(context.WithoutCancel(ctx), n2, was))
	}()
	if err := s.readdress(ctx, n2, now); err != nil {
		return "", err
	}
	if err := s.seen(ctx, n, now); err != nil {
		return "", err
	}
	begun := time.Now()
	err = s.cast.reach(ctx)
	return "all pods reached " + time.Since(begun).Round(time.Millisecond).String() + " after", err
}

// readdress changes a node's address: on its link, in its switch's own routes, and in its Node object, as a kubelet does.
func (s *soak) readdress(ctx context.Context, n lab.Node, to string) error {
	device := "eth0"
	if s.cluster.Datapath == "netdev" {
		device = "br-phy"
	}
	// At once: the lab restores its nodes' addresses, and tunnels use the first address.
	script := fmt.Sprintf("ip addr flush dev %[2]s; ip addr add %[1]s/24 dev %[2]s; ip route replace default via 172.31.0.254 dev %[2]s", to, device)
	if _, err := probe.Run(ctx, n.Enter("sh", "-ec", script)); err != nil {
		return err
	}
	if device == "br-phy" {
		for _, argv := range [][]string{
			{"ovs-appctl", "-t", "ovs-vswitchd", "ovs/route/del", "172.31.0.0/24"},
			{"ovs-appctl", "-t", "ovs-vswitchd", "ovs/route/add", "172.31.0.0/24", device},
			{"ovs-appctl", "-t", "ovs-vswitchd", "ovs/route/del", "0.0.0.0/0"},
			{"ovs-appctl", "-t", "ovs-vswitchd", "ovs/route/add", "0.0.0.0/0", device, "172.31.0.254"},
		} {
			if _, err := probe.Run(ctx, n.Enter(argv...)); err != nil {
				return err
			}
		}
	}
	nodes, err := probe.Objects(s.cluster, "", "nodes")
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"status":{"addresses":[{"type":"InternalIP","address":%q}]}}`, to)
	_, err = nodes.Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
