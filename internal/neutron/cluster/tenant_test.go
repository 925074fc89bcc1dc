package cluster

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	set(stackubev1.StatePending)
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

// A Tenant whose user or project belongs to another Tenant is refused, and its status and event name the other one. The other's user keeps its
// password.
func TestUserOfAnotherTenant(t *testing.T) {
	named := func(name string) *stackubev1.Tenant {
		return &stackubev1.Tenant{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-" + name), Generation: 1},
			Spec:       stackubev1.TenantSpec{UserName: "shared", Password: "one"},
		}
	}
	first, second, third, fourth, fifth := named("first"), named("second"), named("third"), named("fourth"), named("fifth")
	third.Spec.UserName, fourth.Spec.UserName = "left", "foreign"
	fifth.Spec.UserName = "elsewhere"
	r := newRig(t, first, second, third, fourth, fifth)
	r.cloud.add("projects", object{"id": "admin", "domain_id": "default"})
	for name, description := range map[string]string{
		"left": "weft weft tenant/uid-of-a-former-one", "foreign": "of an administrator", "elsewhere": "weft other tenant/uid-of-first",
	} {
		r.cloud.add("users", object{"name": name, "domain_id": "default", "description": description})
	}
	tenants := &tenantReconciler{
		client: r.client, cloud: r.open, events: r.events, log: discard(), network: stackubev1.NetworkSpec{CIDR: "10.244.0.0/16"},
	}
	for _, one := range []struct {
		tenant *stackubev1.Tenant
		want   string // "": it is served
	}{
		{first, ""},
		{second, `user "shared": exists in OpenStack and was made by Weft for Tenant first: choose another spec.username`},
		{third, `user "left": exists in OpenStack and was made by Weft for a Tenant that does not exist any more, UID uid-of-a-former-one: choose`},
		{fourth, `user "foreign": exists in OpenStack and was not made by Weft: choose`},
		{fifth, `user "elsewhere": exists in OpenStack and was made by Weft for another installation, "other": choose`},
	} {
		req := request("default")
		req.Name = one.tenant.Name
		_, err := tenants.Reconcile(t.Context(), req)
		if err := r.client.Get(t.Context(), client.ObjectKeyFromObject(one.tenant), one.tenant); err != nil {
			t.Fatal(err)
		}
		status, said := one.tenant.Status, r.said()
		if one.want == "" {
			if status.State != stackubev1.StateActive {
				t.Errorf("tenant %s: %+v, %v", one.tenant.Name, status, err)
			}
			continue
		}
		if status.State != stackubev1.StateFailed || !strings.Contains(status.Message, one.want) || !strings.Contains(said, one.want) ||
			len(status.Conditions) == 0 || status.Conditions[0].Reason != "Taken" || !strings.Contains(status.Conditions[0].Message, one.want) {
			t.Errorf("tenant %s: %+v, event %q; want %q", one.tenant.Name, status, said, one.want)
		}
	}
	r.cloud.mu.Lock()
	defer r.cloud.mu.Unlock()
	if slices.ContainsFunc(r.cloud.changes, func(c string) bool { return strings.HasPrefix(c, "PATCH users/") }) {
		t.Errorf("a user was changed: %v", r.cloud.changes)
	}
}
