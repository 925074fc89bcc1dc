package cluster

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
)

// A user's password is set once for each change of its Tenant: setting it again, after an absence of OpenStack or while the Tenant is not
// ready for another reason, would end the user's sessions.
func TestPasswordsAreSetOnce(t *testing.T) {
	tenant := &stackubev1.Tenant{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "team", UID: "uid", Generation: 1},
		Spec:       stackubev1.TenantSpec{UserName: "team-user", Password: "one"},
	}
	r := newRig(t, tenant)
	r.cloud.add("projects", object{"id": "admin", "domain_id": "default"})
	tenants := &tenantReconciler{
		client: r.client, cloud: r.open, events: r.events, log: discard(), network: stackubev1.NetworkSpec{CIDR: "10.244.0.0/16"},
	}
	// set reconciles, and returns how often the password has been set.
	set := func(state string) int {
		t.Helper()
		req := request("default")
		req.Name = "team"
		_, err := tenants.Reconcile(t.Context(), req)
		if err := r.client.Get(t.Context(), client.ObjectKeyFromObject(tenant), tenant); err != nil {
			t.Fatal(err)
		}
		if tenant.Status.State != state {
			t.Fatalf("tenant: %+v, want %s: %v", tenant.Status, state, err)
		}
		r.cloud.mu.Lock()
		defer r.cloud.mu.Unlock()
		return len(slices.DeleteFunc(slices.Clone(r.cloud.changes), func(c string) bool { return !strings.HasPrefix(c, "PATCH users/") }))
	}
	if count := set(stackubev1.StateActive); count != 0 || len(r.cloud.all("users")) != 1 {
		t.Errorf("a new user's password is set %d times again", count)
	}
	r.cloud.absent(true)
	set(stackubev1.StateFailed)
	r.cloud.absent(false)
	if count := set(stackubev1.StateActive); count != 0 {
		t.Errorf("after an absence the password is set %d times", count)
	}
	tenant.Spec.Password, tenant.Generation = "two", 2
	if err := r.client.Update(t.Context(), tenant); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if count := set(stackubev1.StateActive); count != 1 {
			t.Errorf("another password is set %d times", count)
		}
	}
}
