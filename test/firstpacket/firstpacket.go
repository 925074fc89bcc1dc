// Package firstpacket holds a network of NetworkPolicies to this: a pod that a policy isolates gets no packet that it must not get, and
// gets none out, from the first moment of its interface on; also while the agent restarts, the controller hangs and the API server is
// away. Pods on both nodes send to addresses before a pod gets them, and a sniffer is in the pod's network namespace before its
// interface is.
package firstpacket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// Namespace is where the pods are, which is made for them and deleted.
const Namespace = "first-packet"

const (
	node     = "n1" // where pods start
	program  = node + "/weft-agent"
	policy   = "deny-all"
	labelKey = "first-packet/isolated"
	free     = "free-" // begins the names of pods that nothing isolates
	// moment is how long after the beginning of an ADD the agent is killed at the latest: an ADD takes less.
	moment = 20 * time.Millisecond
	// atATime is how many pods start without an API server, and while the controller hangs, before things are again as they were.
	atATime = 25
)

// Report is what was seen.
type Report struct {
	// Starts counts pods, Aimed those to whose address packets were sent before they had it, Sandboxes what was made for them: more where
	// an agent was killed. Restarts counts the agents that were killed during an ADD, which failed.
	Starts, Aimed, Sandboxes, Restarts int
	// Sent counts the senders' packets, Leaked the packets that arrived at an isolated pod or left it.
	Sent   int64
	Leaked int
	// Leaks are the first of those in words.
	Leaks []string
}

// String returns the report in words.
func (r *Report) String() string {
	return fmt.Sprintf("%d pods started, %d of them with packets to their address before they had it, in %d sandboxes, with %d restarts of the agent: %d packets sent, %d leaked",
		r.Starts, r.Aimed, r.Sandboxes, r.Restarts, r.Sent, r.Leaked)
}

// run is a test under way.
type run struct {
	cluster *lab.Cluster
	client  kubernetes.Interface
	senders *senders
	// sniffers are in the senders' namespaces.
	sniffers []*traffic.Sniffer
	report   Report
}

// Run starts so many pods, half of them with nothing else going on, in a cluster of two nodes that is in the mode with NetworkPolicies.
// An error is what kept it from judging.
func Run(ctx context.Context, c *lab.Cluster, starts int) (report Report, err error) {
	r := &run{cluster: c}
	defer func() {
		err = errors.Join(err, r.close(context.WithoutCancel(ctx)))
		report = r.report
	}()
	if err := r.open(ctx); err != nil {
		return report, err
	}
	if err := r.control(ctx, free+"begin"); err != nil {
		return report, fmt.Errorf("the control, with a pod that nothing isolates: %w", err)
	}
	fifth := max(starts/5, 1)
	for _, part := range []struct {
		name string
		pods int
		run  func(context.Context, int) error
	}{
		{"no component fails", starts - 3*fifth, r.plain},
		{"the agent restarts", fifth, r.restarting},
		{"the controller hangs", fifth, r.withoutController},
		{"the API server is away", fifth, r.withoutAPI},
	} {
		before := r.report
		if err := part.run(ctx, part.pods); err != nil {
			return report, fmt.Errorf("while %s: %w", part.name, err)
		}
		if aimed := r.report.Aimed - before.Aimed; aimed*2 < part.pods {
			return report, fmt.Errorf("while %s: packets were sent to only %d of %d pods before they had their address", part.name, aimed, part.pods)
		}
	}
	return report, r.finish(ctx)
}

// open makes the namespace with its policy, and the senders.
func (r *run) open(ctx context.Context) (err error) {
	if r.client, err = r.cluster.Client(); err != nil {
		return err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	if _, err := r.client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make namespace %s: %w", Namespace, err)
	}
	deny := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: policy}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: isolated()},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
	}}
	if _, err := r.client.NetworkingV1().NetworkPolicies(Namespace).Create(ctx, deny, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make policy %s/%s: %w", Namespace, policy, err)
	}
	var pods []*lab.Pod
	for _, on := range []string{node, "n2"} {
		p, err := probe.AddPod(ctx, r.cluster, lab.PodSpec{Node: on, Namespace: Namespace, Name: "sender-" + on})
		if err != nil {
			return err
		}
		pods = append(pods, p)
		sniffer, err := traffic.Listen(p.Netns, traffic.Capture{Device: "eth0", Incoming: true, Keep: ofNewPods})
		if err != nil {
			return err
		}
		r.sniffers = append(r.sniffers, sniffer)
	}
	r.senders, err = newSenders(ctx, r.cluster, pods)
	return err
}

func isolated() map[string]string { return map[string]string{labelKey: "true"} }

// close takes away what was made.
func (r *run) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	var errs []error
	if r.senders != nil {
		errs = append(errs, r.senders.close())
		r.report.Sent = r.senders.sent.Load()
	}
	for _, sniffer := range r.sniffers {
		errs = append(errs, sniffer.Close())
	}
	pods, err := r.cluster.Pods(ctx)
	errs = append(errs, err)
	for _, p := range pods {
		if p.Namespace == Namespace {
			errs = append(errs, probe.Detach(ctx, p), r.forget(ctx, p.Name))
		}
	}
	if r.client != nil {
		err := r.client.CoreV1().Namespaces().Delete(ctx, Namespace, metav1.DeleteOptions{})
		errs = append(errs, err, r.client.NetworkingV1().NetworkPolicies(Namespace).Delete(ctx, policy, metav1.DeleteOptions{}))
	}
	return errors.Join(errs...)
}

// forget deletes a pod's object.
func (r *run) forget(ctx context.Context, name string) error {
	err := r.client.CoreV1().Pods(Namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete pod %s/%s: %w", Namespace, name, err)
	}
	return nil
}

// control starts a pod that nothing isolates: the senders' packets must arrive in it, and its packets at the senders.
func (r *run) control(ctx context.Context, name string) (err error) {
	spec := lab.PodSpec{Node: node, Namespace: Namespace, Name: name}
	uid, err := r.cluster.MakeObject(ctx, spec)
	if err != nil {
		return err
	}
	p, err := r.attach(ctx, spec, uid, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close(ctx), r.forget(ctx, name)) }()
	for i := range r.senders.ends {
		if _, received := p.sniffer.Await(fmt.Appendf(nil, "%s%d", markIn, i), probe.Patience); !received {
			return errors.New("the pod receives no packet, so missing packets of isolated pods prove nothing")
		}
	}
	for _, sniffer := range r.sniffers {
		_, err := probe.Await(ctx, probe.Patience, "the pod's packets at the senders", func(ctx context.Context) error {
			if err := r.send(p.pod); err != nil {
				return err
			}
			if _, received := sniffer.Find(message(p.pod)); !received {
				return errors.New("no packet of the pod has arrived")
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// finish has a pod that nothing isolates send last: packets of other pods have arrived by then, or never will. It counts those
// that arrived.
func (r *run) finish(ctx context.Context) error {
	if err := r.control(ctx, free+"end"); err != nil {
		return fmt.Errorf("the control at the end: %w", err)
	}
	for _, sniffer := range r.sniffers {
		for _, frame := range sniffer.Take() {
			if !bytes.Contains(frame, []byte(markOut+free)) {
				r.leaked("that starts", "left it", [][]byte{frame})
			}
		}
	}
	return nil
}

// plain starts pods.
func (r *run) plain(ctx context.Context, pods int) error {
	for i := range pods {
		if err := r.one(ctx, fmt.Sprint("plain-", i), nil); err != nil {
			return err
		}
	}
	return nil
}

// restarting starts pods, and kills the agent at some moment of each ADD.
func (r *run) restarting(ctx context.Context, pods int) error {
	for i := range pods {
		var killer errgroup.Group
		var once sync.Once
		before := r.report.Sandboxes
		err := r.one(ctx, fmt.Sprint("restarting-", i), func() {
			once.Do(func() {
				killer.Go(func() error {
					<-time.After(rand.N(moment)) //nolint:gosec // any moment
					return probe.Kill(ctx, r.cluster, program, syscall.SIGKILL)
				})
			})
		})
		if err := errors.Join(err, killer.Wait()); err != nil {
			return err
		}
		if r.report.Sandboxes > before+1 { // an ADD failed by it
			r.report.Restarts++
		}
	}
	_, err := probe.Await(ctx, probe.Patience, "the agent ready", func(ctx context.Context) error {
		return probe.Ready(ctx, r.cluster.Node(1))
	})
	return err
}

// withoutController starts pods while no controller leads.
func (r *run) withoutController(ctx context.Context, pods int) (err error) {
	if _, err := probe.Signal(ctx, r.cluster, "weft-controller", syscall.SIGSTOP); err != nil {
		return err
	}
	defer func() {
		_, contErr := probe.Signal(context.WithoutCancel(ctx), r.cluster, "weft-controller", syscall.SIGCONT)
		err = errors.Join(err, contErr)
	}()
	for i := range pods {
		if err := r.one(ctx, fmt.Sprint("uncontrolled-", i), nil); err != nil {
			return err
		}
	}
	return nil
}

// withoutAPI starts pods that the agent has observed, while it cannot reach the API server.
func (r *run) withoutAPI(ctx context.Context, pods int) error {
	for i := 0; i < pods; i += atATime {
		if err := r.someWithoutAPI(ctx, i, min(atATime, pods-i)); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) someWithoutAPI(ctx context.Context, first, pods int) (err error) {
	specs := make([]lab.PodSpec, pods)
	uids := make([]string, pods)
	for i := range specs {
		specs[i] = lab.PodSpec{Node: node, Namespace: Namespace, Name: fmt.Sprint("alone-", first+i), Labels: isolated()}
		if uids[i], err = r.cluster.MakeObject(ctx, specs[i]); err != nil {
			return err
		}
	}
	// The watch reports pods in order: an agent that has observed a later pod has observed these.
	if err := r.one(ctx, fmt.Sprint("known-", first), nil); err != nil {
		return err
	}
	back, err := probe.CutAPI(ctx, r.cluster)
	if err != nil {
		return err
	}
	for i := range specs {
		if err = r.judge(ctx, specs[i], uids[i], nil); err != nil {
			break
		}
	}
	err = errors.Join(err, back(context.WithoutCancel(ctx)))
	for i := range specs {
		err = errors.Join(err, r.forget(ctx, specs[i].Name))
	}
	return err
}

// one starts a pod that is isolated, judges what comes to it and from it, and ends it. before is called before each of its ADDs.
func (r *run) one(ctx context.Context, name string, before func()) error {
	spec := lab.PodSpec{Node: node, Namespace: Namespace, Name: name, Labels: isolated()}
	uid, err := r.cluster.MakeObject(ctx, spec)
	if err != nil {
		return err
	}
	return errors.Join(r.judge(ctx, spec, uid, before), r.forget(ctx, name))
}

// judge starts a pod whose object there is, and ends it.
func (r *run) judge(ctx context.Context, spec lab.PodSpec, uid string, before func()) (err error) {
	p, err := r.attach(ctx, spec, uid, before)
	if err != nil {
		return err
	}
	defer func() {
		ended := p.close(ctx)
		r.leaked(spec.Name, "arrived at it", p.sniffer.Take()) // to its last moment
		err = errors.Join(err, ended)
	}()
	if err := r.send(p.pod); err != nil {
		return fmt.Errorf("pod %s: %w", spec.Name, err)
	}
	if err := r.nodeReaches(ctx, p); err != nil {
		return fmt.Errorf("pod %s: %w", spec.Name, err)
	}
	r.report.Starts++
	return nil
}

// leaked counts frames that must not be.
func (r *run) leaked(pod, what string, frames [][]byte) {
	const most = 10
	for range frames {
		if r.report.Leaked++; len(r.report.Leaks) < most {
			r.report.Leaks = append(r.report.Leaks, fmt.Sprintf("pod %s: a packet %s", pod, what))
		}
	}
}

// startedPod is a pod with a sniffer.
type startedPod struct {
	pod     *lab.Pod
	sniffer *traffic.Sniffer
}

// close ends the pod's sandbox, and then the sniffer.
func (f *startedPod) close(ctx context.Context) error {
	return errors.Join(probe.Detach(ctx, f.pod), f.sniffer.Close())
}

// attach attaches a pod, with a sniffer that is there before its interface; as a kubelet does, again in another sandbox as long as
// the agent answers "try again later".
func (r *run) attach(ctx context.Context, spec lab.PodSpec, uid string, before func()) (*startedPod, error) {
	ctx, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	f := &startedPod{}
	var sending sync.WaitGroup
	stopSending := func() {}
	spec.Before = func(p *lab.Pod) (err error) {
		if f.sniffer, err = traffic.Listen(p.Netns, traffic.Capture{Incoming: true, Keep: ofSenders}); err != nil {
			return err
		}
		var sendCtx context.Context
		sendCtx, stopSending = context.WithCancel(ctx)
		sending.Go(func() { r.sendRepeatedly(sendCtx, p) })
		if before != nil {
			before()
		}
		return nil
	}
	for {
		r.report.Sandboxes++
		p, err := r.cluster.Node(1).Attach(ctx, spec, uid)
		stopSending()
		sending.Wait()
		f.pod = p
		if err == nil {
			if r.senders.aimed(p.IPs[0]) {
				r.report.Aimed++
			}
			return f, r.senders.follow(p.IPs[0])
		}
		if f.sniffer == nil {
			return nil, errors.Join(err, probe.Detach(ctx, p))
		}
		ended := f.close(ctx)
		if spec.Labels != nil {
			r.leaked(spec.Name, "arrived at a sandbox of it whose ADD failed", f.sniffer.Take())
		}
		if failure, known := probe.AsFailure(err); !known || failure.Code != probe.CodeTryAgain || ended != nil {
			return nil, errors.Join(err, ended)
		}
		f.sniffer = nil
	}
}

// message is what a pod sends.
func message(p *lab.Pod) []byte { return []byte(markOut + p.Name + ".") }

// sendRepeatedly has a pod send to the senders repeatedly, from the first moment that it has an address and a route.
func (r *run) sendRepeatedly(ctx context.Context, p *lab.Pod) {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for ctx.Err() == nil {
		_ = r.send(p) // until then it fails
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// send has a pod send to the senders.
func (r *run) send(p *lab.Pod) error {
	conn, err := traffic.ListenUDP(p.Netns, netip.AddrPort{})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	for _, end := range r.senders.ends {
		if _, err := conn.WriteToUDPAddrPort(message(p), netip.AddrPortFrom(end.IP, discard)); err != nil {
			return fmt.Errorf("send from pod %s: %w", p.Name, err)
		}
	}
	return nil
}

// nodeReaches waits until the pod gets what its node sends, which always may: its interface works, and the sniffer captures.
func (r *run) nodeReaches(ctx context.Context, f *startedPod) error {
	listener, err := traffic.ListenUDP(f.pod.Netns, netip.AddrPortFrom(f.pod.IPs[0], 0))
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	from, err := traffic.ListenUDP(r.cluster.Node(1).Netns, netip.AddrPort{})
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	to := listener.LocalAddr().(*net.UDPAddr).AddrPort() //nolint:forcetypeassert // of a UDP socket
	buffer := make([]byte, 64)
	_, err = probe.Await(ctx, probe.Patience, "its node's packet", func(context.Context) error {
		if _, err := from.WriteToUDPAddrPort([]byte(markNode), to); err != nil {
			return err
		}
		if err := listener.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			return err
		}
		n, err := listener.Read(buffer)
		if err == nil && string(buffer[:n]) != markNode {
			err = fmt.Errorf("received %q", buffer[:n])
		}
		return err
	})
	return err
}
