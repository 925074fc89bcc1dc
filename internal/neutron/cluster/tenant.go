package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	"weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/cluster/late"
	"weft.dev/weft/internal/neutron/conf"
	"weft.dev/weft/internal/neutron/objects"
	"weft.dev/weft/internal/placement"
)

// ofTenant marks the Namespaces and Networks that were created for a Tenant.
const ofTenant = objects.AnnotationTenant

// tenantReconciler keeps projects, users, Namespaces and Networks in step with Tenants.
type tenantReconciler struct {
	client  client.Client
	cloud   *connection
	events  events.EventRecorder
	network stackubev1.NetworkSpec // of the Network that each tenant gets
	log     *slog.Logger
}

// tenantOwner begins the owner in the marks of a Tenant's objects in OpenStack.
const tenantOwner = "tenant/"

func owner(t *stackubev1.Tenant) string { return tenantOwner + string(t.UID) }

// Reconcile brings one Tenant into step.
func (r *tenantReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var t stackubev1.Tenant
	if err := r.client.Get(ctx, req.NamespacedName, &t); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !t.DeletionTimestamp.IsZero() {
		return settle(r.remove(ctx, &t))
	}
	if t.Namespace != objects.TenantNamespace {
		return cluster.Settle(r.updateStatus(ctx, &t, outcome{
			state: stackubev1.StateFailed, reason: reasonInvalid,
			message: "metadata.namespace: Tenants are served in namespace " + objects.TenantNamespace + " only",
		}))
	}
	if controllerutil.AddFinalizer(&t, Finalizer) {
		if err := r.client.Update(ctx, &t); err != nil {
			return cluster.Settle(fmt.Errorf("add the finalizer to tenant %s: %w", t.Name, err))
		}
	}
	done, err := r.ensure(ctx, &t)
	if err != nil {
		r.log.WarnContext(ctx, "tenant not in step", "tenant", t.Name, "error", err)
	}
	return settle(ctrl.Result{RequeueAfter: reread}, err, r.updateStatus(ctx, &t, outcomeOf(done, err)))
}

// ensured is what a Tenant has in OpenStack.
type ensured struct {
	project string // its id
	// user reports that the user has the Tenant's password.
	user bool
}

func outcomeOf(done ensured, err error) outcome {
	o := outcome{state: stackubev1.StateActive, reason: reasonInStep, id: done.project, user: done.user}
	if err != nil {
		o = failed(err)
		o.id, o.user = done.project, done.user
	}
	if errors.Is(err, cloud.ErrForeign) || errors.Is(err, errOthers) {
		o.reason = "Taken"
	}
	return o
}

// hasPassword reports whether the Tenant's user has got the password.
func hasPassword(t *stackubev1.Tenant) bool {
	for _, kind := range []string{stackubev1.ConditionReady, stackubev1.ConditionUser} {
		c := meta.FindStatusCondition(t.Status.Conditions, kind)
		if c != nil && c.Status == metav1.ConditionTrue && c.ObservedGeneration == t.Generation {
			return true
		}
	}
	return false
}

// ensure creates what is missing; what there is, is returned with an error as well.
func (r *tenantReconciler) ensure(ctx context.Context, t *stackubev1.Tenant) (done ensured, err error) {
	os, err := r.cloud.get(ctx)
	if err != nil {
		return done, err
	}
	answered := r.cloud.late.Begin(t.UID)
	defer func() {
		answered(err)
		r.cloud.failed(os, err)
	}()
	if t.Spec.TenantID != "" {
		done.project, err = os.Project(ctx, t.Spec.TenantID)
	} else {
		done.project, err = os.EnsureProject(ctx, owner(t), t.Name)
		err = r.holder(ctx, err)
		if errors.Is(err, cloud.ErrForeign) {
			err = fmt.Errorf("%w: give its id in spec.tenantID to use it", err)
		}
	}
	if err != nil {
		return ensured{}, err
	}
	err = os.EnsureUser(ctx, cloud.User{
		Owner: owner(t), Name: t.Spec.UserName, Password: conf.Secret(t.Spec.Password), Project: done.project, NewPassword: !hasPassword(t),
	})
	if err = r.holder(ctx, err); errors.Is(err, cloud.ErrForeign) {
		err = fmt.Errorf("%w: choose another spec.username, or delete the user in OpenStack if nothing uses it", err)
	}
	if err != nil {
		return done, err
	}
	done.user = true
	if err := r.ensureNamespace(ctx, t); err != nil {
		return done, err
	}
	return done, r.ensureNetwork(ctx, t)
}

// holder names the Tenant in an error about an object of another Tenant, whose mark has the Tenant's UID only.
func (r *tenantReconciler) holder(ctx context.Context, err error) error {
	taken, is := errors.AsType[*cloud.TakenError](err)
	if !is {
		return err
	}
	uid, ofTenant := strings.CutPrefix(taken.Owner, tenantOwner)
	if !ofTenant {
		return err
	}
	var list stackubev1.TenantList
	if listErr := r.client.List(ctx, &list, client.InNamespace(objects.TenantNamespace)); listErr != nil {
		return errors.Join(err, fmt.Errorf("list the Tenants: %w", listErr))
	}
	for i := range list.Items {
		if string(list.Items[i].UID) == uid {
			return &cloud.TakenError{What: taken.What, Owner: "Tenant " + list.Items[i].Name}
		}
	}
	return &cloud.TakenError{What: taken.What, Owner: "a Tenant that does not exist any more, UID " + uid}
}

var errOthers = errors.New("is there and was not made for this Tenant")

// ensureNamespace creates the tenant's Namespace. Its annotation keeps its pods off any other network from the start.
func (r *tenantReconciler) ensureNamespace(ctx context.Context, t *stackubev1.Tenant) error {
	ns := &corev1.Namespace{}
	err := r.client.Get(ctx, client.ObjectKey{Name: t.Name}, ns)
	switch {
	case err == nil && ns.Annotations[ofTenant] != string(t.UID):
		return fmt.Errorf("namespace %s %w: choose another name for the Tenant", t.Name, errOthers)
	case err == nil:
		return nil
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("read namespace %s: %w", t.Name, err)
	}
	ns = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: t.Name, Annotations: map[string]string{
		ofTenant: string(t.UID), placement.AnnotationNetwork: "neutron/" + t.Name,
	}}}
	if err := r.client.Create(ctx, ns); err != nil {
		return fmt.Errorf("create namespace %s: %w", t.Name, err)
	}
	return nil
}

// ensureNetwork creates the Network that stackube creates for each namespace, unless there is one with its name.
func (r *tenantReconciler) ensureNetwork(ctx context.Context, t *stackubev1.Tenant) error {
	n := &stackubev1.Network{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.Name, Name: t.Name, Annotations: map[string]string{ofTenant: string(t.UID)}},
		Spec:       r.network,
	}
	err := r.client.Get(ctx, client.ObjectKeyFromObject(n), &stackubev1.Network{})
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("read network %s/%s: %w", t.Name, t.Name, err)
	}
	if err := r.client.Create(ctx, n); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create network %s/%s: %w", t.Name, t.Name, err)
	}
	return nil
}

// remove deletes in order: the Namespace with its Networks, then user and project.
func (r *tenantReconciler) remove(ctx context.Context, t *stackubev1.Tenant) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(t, Finalizer) {
		return ctrl.Result{}, nil
	}
	left := r.cloud.late.Left(t.UID) // before the look
	waits, err := r.removeBelow(ctx, t)
	if err == nil && waits == "" {
		err = r.removeHeld(ctx, t)
	}
	why, again := late.Waiting(waits, err, left)
	if why != "" {
		reported := r.updateStatus(ctx, t, outcome{state: stackubev1.StateTerminating, reason: "Waiting", message: why, id: t.Status.ProjectID})
		return ctrl.Result{RequeueAfter: again}, errors.Join(err, reported)
	}
	controllerutil.RemoveFinalizer(t, Finalizer)
	if err := client.IgnoreNotFound(r.client.Update(ctx, t)); err != nil {
		return ctrl.Result{}, fmt.Errorf("remove the finalizer of tenant %s: %w", t.Name, err)
	}
	return ctrl.Result{}, nil
}

// removeHeld removes the tenant's user, and its project if Weft created it.
func (r *tenantReconciler) removeHeld(ctx context.Context, t *stackubev1.Tenant) error {
	os, err := r.cloud.get(ctx)
	if err != nil {
		return err
	}
	err = os.RemoveTenant(ctx, owner(t), t.Spec.UserName, t.Name)
	r.cloud.failed(os, err)
	return err
}

// removeBelow returns what the deletion waits for, if anything.
func (r *tenantReconciler) removeBelow(ctx context.Context, t *stackubev1.Tenant) (waits string, err error) {
	ns := &corev1.Namespace{}
	err = r.client.Get(ctx, client.ObjectKey{Name: t.Name}, ns)
	if apierrors.IsNotFound(err) || err == nil && ns.Annotations[ofTenant] != string(t.UID) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read namespace %s: %w", t.Name, err)
	}
	if ns.DeletionTimestamp.IsZero() {
		// A Namespace that was created again under the name is not the tenant's.
		if err := client.IgnoreNotFound(r.client.Delete(ctx, ns, client.Preconditions{UID: new(ns.UID), ResourceVersion: new(ns.ResourceVersion)})); err != nil {
			return "", fmt.Errorf("delete namespace %s: %w", t.Name, err)
		}
	}
	var networks stackubev1.NetworkList
	if err := r.client.List(ctx, &networks, client.InNamespace(t.Name)); err != nil {
		return "", fmt.Errorf("list the networks of namespace %s: %w", t.Name, err)
	}
	for i := range networks.Items {
		n := &networks.Items[i]
		if !n.DeletionTimestamp.IsZero() {
			continue
		}
		if err := client.IgnoreNotFound(r.client.Delete(ctx, n)); err != nil {
			return "", fmt.Errorf("delete network %s/%s: %w", n.Namespace, n.Name, err)
		}
	}
	if len(networks.Items) > 0 {
		waits = fmt.Sprintf("%d networks of namespace %s are being deleted", len(networks.Items), t.Name)
	}
	return waits, nil
}

// updateStatus writes a status if it differs.
func (r *tenantReconciler) updateStatus(ctx context.Context, t *stackubev1.Tenant, o outcome) error {
	status := t.Status.DeepCopy()
	status.State, status.Message = o.state, o.message
	if o.id != "" {
		status.ProjectID = o.id
	}
	changed := meta.SetStatusCondition(&status.Conditions, condition(t.Generation, o))
	if o.user {
		changed = meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: stackubev1.ConditionUser, Status: metav1.ConditionTrue, Reason: reasonInStep, ObservedGeneration: t.Generation,
		}) || changed
	}
	if !changed && t.Status.State == status.State && t.Status.Message == status.Message && t.Status.ProjectID == status.ProjectID {
		return nil
	}
	t.Status = *status
	if err := client.IgnoreNotFound(r.client.Status().Update(ctx, t)); err != nil {
		return fmt.Errorf("write the status of tenant %s: %w", t.Name, err)
	}
	sendEvent(r.events, t, o)
	return nil
}
