package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/cluster/late"
	"weft.dev/weft/internal/neutron/objects"
	"weft.dev/weft/internal/neutron/openstack"
)

// Finalizer keeps an object until nothing of it is left in OpenStack.
const Finalizer = "network.weft.dev/openstack"

// reread is how often OpenStack is read again for an object in step: Neutron has no events.
const reread = 5 * time.Minute

// networkReconciler keeps OpenStack in step with Networks.
type networkReconciler struct {
	client   client.Client
	cloud    *connection
	reserved *reservedReader
	events   events.EventRecorder
	log      *slog.Logger
}

// Reasons of conditions and events.
const (
	reasonInStep    = "InStep"
	reasonInvalid   = "Invalid"
	reasonOpenStack = "OpenStack"
)

// outcome is the content of a status.
type outcome struct {
	state, reason, message, id string
	mtu                        int
	// user reports that a Tenant's user has the Tenant's password.
	user bool
}

// Reconcile brings one Network into step.
func (r *networkReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var n stackubev1.Network
	if err := r.client.Get(ctx, req.NamespacedName, &n); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !n.DeletionTimestamp.IsZero() {
		return settle(r.remove(ctx, &n))
	}
	if controllerutil.AddFinalizer(&n, Finalizer) {
		if err := r.client.Update(ctx, &n); err != nil {
			return cluster.Settle(fmt.Errorf("add the finalizer to network %s: %w", req.NamespacedName, err))
		}
	}
	done, err := r.ensure(ctx, &n)
	if err != nil {
		r.log.WarnContext(ctx, "network not in step", "network", req.String(), "error", err)
	}
	return settle(ctrl.Result{RequeueAfter: reread}, err, r.updateStatus(ctx, &n, done))
}

// ensure creates what is missing. The error is nil if a retry does not help: the outcome then says what to change.
func (r *networkReconciler) ensure(ctx context.Context, n *stackubev1.Network) (outcome, error) {
	os, err := r.cloud.get(ctx)
	if err != nil {
		return outcome{state: stackubev1.StatePending, reason: reasonOpenStack, message: err.Error()}, err
	}
	answered := r.cloud.late.Begin(n.UID)
	done, err := r.ensureAt(ctx, os, n)
	answered(err)
	r.cloud.failed(os, err)
	return done, err
}

// failed is the outcome of an error of OpenStack. While OpenStack is away, it is not known that anything has failed.
func failed(err error) outcome {
	o := outcome{state: stackubev1.StateFailed, reason: reasonOpenStack, message: err.Error()}
	if openstack.Away(err) {
		o.state = stackubev1.StatePending
	}
	return o
}

func (r *networkReconciler) ensureAt(ctx context.Context, os *session, n *stackubev1.Network) (outcome, error) {
	project, err := projectOf(ctx, r.client, os, n)
	waiting := outcome{state: stackubev1.StatePending, reason: "NoProject"}
	switch {
	case errors.Is(err, errTenant): // the Tenant's change queues this Network again
		waiting.message = err.Error()
		return waiting, nil
	case err != nil:
		waiting.message = err.Error()
		return waiting, err
	}
	done, err := r.ensureNetwork(ctx, os, n, project)
	if err != nil || done.state != stackubev1.StateActive {
		return done, err
	}
	if _, err := os.group(ctx, project, n.Spec.IPv6CIDR != ""); err != nil {
		o := failed(err)
		o.id, o.mtu = done.id, done.mtu
		return o, err
	}
	return done, nil
}

func (r *networkReconciler) ensureNetwork(ctx context.Context, os *session, n *stackubev1.Network, project string) (outcome, error) {
	rules, err := r.reserved.read(ctx, os)
	if err != nil {
		return outcome{state: stackubev1.StatePending, reason: "NoRanges", message: err.Error()}, err
	}
	if n.Spec.NetworkID != "" {
		return adopt(ctx, os, n, project, rules)
	}
	want, invalid := objects.Compile(n, project, rules)
	if invalid != nil {
		wrong := outcome{state: stackubev1.StateFailed, reason: reasonInvalid, message: invalid.Error()}
		return wrong, nil //nolint:nilerr // trying again does not help: the object has to change
	}
	id, err := os.EnsureNetwork(ctx, want)
	if errors.Is(err, cloud.ErrFixed) || errors.Is(err, cloud.ErrForeign) {
		return outcome{state: stackubev1.StateFailed, reason: "Conflict", message: err.Error()}, err
	}
	if err != nil {
		return failed(err), err
	}
	held, err := os.FindNetwork(ctx, "", "", id)
	if err != nil {
		return failed(err), err
	}
	return active(held), nil
}

func active(held *cloud.HeldNetwork) outcome {
	return outcome{state: stackubev1.StateActive, reason: reasonInStep, id: held.ID, mtu: held.MTU}
}

// adopt uses an existing network: one of the project, or a shared one. Its range is checked, because nodes route the addresses of its pods.
func adopt(ctx context.Context, os *session, n *stackubev1.Network, project string, rules *objects.Rules) (outcome, error) {
	held, err := os.usable(ctx, n, project, n.Spec.NetworkID)
	if err != nil {
		o := failed(fmt.Errorf("spec.networkID: %w", err))
		if errors.Is(err, errUse) {
			o.reason, err = reasonInvalid, nil // trying again does not help: the object or the network has to change
		}
		return o, err
	}
	if refused := objects.Adoptable(n, held, rules); refused != nil {
		return outcome{state: stackubev1.StateFailed, reason: reasonInvalid, message: refused.Error()}, nil //nolint:nilerr // as above
	}
	return active(held), nil
}

// errUse reports that a Network must not use a network in OpenStack.
var errUse = errors.New("give a network of the tenant's project, or a shared one")

// usable returns the network with an id if pods of a Network of a project may be on it. A status is no proof of that: users with rights on it
// can write another tenant's network there, and a network that was shared may not be any more.
func (s *session) usable(ctx context.Context, n *stackubev1.Network, project, id string) (*cloud.HeldNetwork, error) {
	held, err := s.FindNetwork(ctx, "", "", id)
	if err != nil {
		return nil, err
	}
	if n.Spec.NetworkID != "" && held.ProjectID != project {
		if held.Shared, err = s.SharedWith(ctx, held.ID, project); err != nil {
			return nil, err
		}
	}
	owner, _ := s.OwnerOf(held.Description)
	if refused := objects.Refusal(n, held, project, owner); refused != "" {
		return nil, fmt.Errorf("network %s %s: %w", id, refused, errUse)
	}
	return held, nil
}

// errTenant reports that a namespace's Tenant has no project yet.
var errTenant = errors.New("the Tenant of this namespace has no project yet")

// projectOf returns the project of the Tenant with the namespace's name; without a Tenant, that of kubestack.conf's credentials.
func projectOf(ctx context.Context, reader client.Reader, os *session, n *stackubev1.Network) (string, error) {
	var t stackubev1.Tenant
	err := reader.Get(ctx, client.ObjectKey{Namespace: objects.TenantNamespace, Name: n.Namespace}, &t)
	switch {
	case apierrors.IsNotFound(err):
		return os.project, nil
	case err != nil:
		return "", fmt.Errorf("read the Tenant of namespace %s: %w", n.Namespace, err)
	case t.Status.ProjectID == "":
		return "", fmt.Errorf("%w: see its status", errTenant)
	}
	return t.Status.ProjectID, nil
}

// remove removes a network that Weft created, once no pod and no machine uses it.
func (r *networkReconciler) remove(ctx context.Context, n *stackubev1.Network) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(n, Finalizer) {
		return ctrl.Result{}, nil
	}
	left := r.cloud.late.Left(n.UID) // before the look
	waits, err := r.removeHeld(ctx, n)
	why, again := late.Waiting(waits, err, left)
	if why != "" {
		reported := r.updateStatus(ctx, n, outcome{
			state: stackubev1.StateTerminating, reason: "Waiting", message: why, id: n.Status.NetworkID, mtu: int(n.Status.MTU),
		})
		return ctrl.Result{RequeueAfter: again}, errors.Join(err, reported)
	}
	controllerutil.RemoveFinalizer(n, Finalizer)
	if err := client.IgnoreNotFound(r.client.Update(ctx, n)); err != nil {
		return ctrl.Result{}, fmt.Errorf("remove the finalizer of network %s/%s: %w", n.Namespace, n.Name, err)
	}
	return ctrl.Result{}, nil
}

// portsLeft returns the NeutronPorts for which the deletion waits, if any.
func (r *networkReconciler) portsLeft(ctx context.Context, n *stackubev1.Network) (waits string, err error) {
	var list weftv1.NeutronPortList
	if err := r.client.List(ctx, &list); err != nil {
		return "", fmt.Errorf("list the NeutronPorts: %w", err)
	}
	var pods []string
	left := 0
	for i := range list.Items {
		p := &list.Items[i]
		if p.Spec.Network.Namespace != n.Namespace || p.Spec.Network.Name != n.Name {
			continue
		}
		left++
		if p.Status.Pod != nil {
			pods = append(pods, p.Status.Pod.Namespace+"/"+p.Status.Pod.Name)
		}
	}
	slices.Sort(pods)
	switch {
	case len(pods) > mostNamed:
		return fmt.Sprintf("pods are on the network: %s and %d others", strings.Join(pods[:mostNamed], ", "), len(pods)-mostNamed), nil
	case len(pods) > 0:
		return "pods are on the network: " + strings.Join(pods, ", "), nil
	case left > 0:
		return fmt.Sprintf("%d ports are being deleted", left), nil
	}
	return "", nil
}

// mostNamed limits the number of pods that a message names.
const mostNamed = 10

// removeHeld returns what the deletion waits for, if anything.
func (r *networkReconciler) removeHeld(ctx context.Context, n *stackubev1.Network) (waits string, err error) {
	if waits, err := r.portsLeft(ctx, n); waits != "" || err != nil {
		return waits, err
	}
	os, err := r.cloud.get(ctx)
	if err != nil {
		return "", err
	}
	defer func() { r.cloud.failed(os, err) }()
	if n.Spec.NetworkID != "" {
		return "", removePorts(ctx, os, n)
	}
	owner := objects.Owner(n)
	held, err := os.OwnNetworks(ctx, owner)
	if err != nil {
		return "", err
	}
	for i := range held {
		others, err := os.ForeignPorts(ctx, held[i].ID)
		if err != nil {
			return "", err
		}
		if others > 0 {
			return fmt.Sprintf("%d ports of others are on the network: remove them in OpenStack", others), nil
		}
		if err := os.RemoveNetwork(ctx, &held[i]); err != nil {
			return "", err
		}
	}
	return "", os.RemoveOwnRouters(ctx, owner)
}

// removePorts removes what Weft has created on a network that stays.
func removePorts(ctx context.Context, os *session, n *stackubev1.Network) error {
	found, err := os.Ports(ctx, n.Spec.NetworkID)
	if err != nil {
		return err
	}
	var errs []error
	for i := range found {
		if at, ours := placeOf(os, &found[i]); ours && at.Network == string(n.UID) {
			errs = append(errs, os.RemovePort(ctx, found[i].ID))
		}
	}
	return errors.Join(errs...)
}

// updateStatus writes a status if it differs.
func (r *networkReconciler) updateStatus(ctx context.Context, n *stackubev1.Network, o outcome) error {
	status := n.Status.DeepCopy()
	status.State, status.Message = o.state, o.message
	if o.id != "" {
		status.NetworkID, status.MTU = o.id, int32(o.mtu) //nolint:gosec // an MTU
	}
	changed := meta.SetStatusCondition(&status.Conditions, condition(n.Generation, o))
	changed = changed || n.Status.State != status.State || n.Status.Message != status.Message
	if !changed && n.Status.NetworkID == status.NetworkID && n.Status.MTU == status.MTU {
		return nil
	}
	n.Status = *status
	if err := client.IgnoreNotFound(r.client.Status().Update(ctx, n)); err != nil {
		return fmt.Errorf("write the status of network %s/%s: %w", n.Namespace, n.Name, err)
	}
	sendEvent(r.events, n, o)
	return nil
}

// sendEvent reports a status that has changed.
func sendEvent(recorder events.EventRecorder, about client.Object, o outcome) {
	kind, note := corev1.EventTypeWarning, o.message
	if o.state == stackubev1.StateActive {
		kind, note = corev1.EventTypeNormal, "OpenStack has what the object asks for"
	}
	recorder.Eventf(about, nil, kind, o.reason, "KeepInStep", "%s", cluster.Note(note))
}

func condition(generation int64, o outcome) metav1.Condition {
	status := metav1.ConditionFalse
	if o.state == stackubev1.StateActive {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{
		Type: stackubev1.ConditionReady, Status: status, Reason: o.reason, Message: o.message, ObservedGeneration: generation,
	}
}
