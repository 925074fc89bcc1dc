package cluster

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/cluster/late"
)

// slow ends requests that create something without an answer, and carries them out later.
type slow struct {
	mu    sync.Mutex
	on    bool
	later []func()
}

func (s *slow) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on || req.Method != http.MethodPost {
		return http.DefaultTransport.RoundTrip(req)
	}
	again := req.Clone(context.Background())
	s.later = append(s.later, func() {
		if res, err := http.DefaultTransport.RoundTrip(again); err == nil {
			_ = res.Body.Close()
		}
	})
	return nil, context.DeadlineExceeded
}

// end carries out the requests.
func (s *slow) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on = false
	for _, do := range s.later {
		do()
	}
	s.later = nil
}

// What OpenStack creates only after its Network or Service was deleted does not stay.
func TestCreatedAfterDeletion(t *testing.T) {
	way := &slow{on: true}
	there := append(slices.Concat(blue(), node("n1"), pods("n1", 3)), web(nil))
	there[1].(*stackubev1.Network).Spec.NetworkID = "net" //nolint:forcetypeassert // it is
	there[1].SetFinalizers([]string{Finalizer})
	r := newRig(t, there...)
	r.cloud.way = way
	r.open.held.Store(r.cloud.session(t))
	now := time.Now()
	r.open.late.Now = func() time.Time { return now }
	r.addBlue()
	r.cloud.add("security-groups", object{"id": "group", "name": cloud.DefaultGroup, "project_id": "admin", "security_group_rules": []object{{"direction": "ingress", "ethertype": "IPv4"}}})
	if _, err := r.ports(time.Now).Reconcile(t.Context(), request("blue")); err == nil {
		t.Error("no error about ports that are not answered")
	}
	services := r.services()
	if err := r.inStep(t, services); err == nil {
		t.Error("no error about a load balancer that is not answered")
	}
	r.remove(t, there[1])
	r.remove(t, web(nil))
	networks, at := r.networks(), request("blue")
	reconcile := func() (time.Duration, time.Duration) {
		t.Helper()
		at.Name = "blue"
		ofNetwork, err := networks.Reconcile(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		at.Name = "web"
		ofService, err := services.Reconcile(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		return ofNetwork.RequeueAfter, ofService.RequeueAfter
	}
	if n, s := reconcile(); n != late.Limit || s != late.Limit {
		t.Errorf("the deletions are continued in %s and %s, want %s", n, s, late.Limit)
	}
	n := &stackubev1.Network{}
	at.Name = "blue"
	if err := r.client.Get(t.Context(), at.NamespacedName, n); err != nil || !strings.Contains(n.Status.Message, "did not answer a request about it in time") {
		t.Errorf("network: %+v: %v", n.Status, err)
	}
	way.end()
	if len(r.cloud.all("ports")) != 3 || len(r.cloud.all("loadbalancers")) != 1 {
		t.Fatalf("created late: ports %v, load balancers %v", r.cloud.all("ports"), r.cloud.all("loadbalancers"))
	}
	now = now.Add(late.Limit)
	for range 3 {
		reconcile()
	}
	if err := r.client.Get(t.Context(), at.NamespacedName, n); err == nil {
		t.Errorf("network: %+v", n)
	}
	r.left(t, "ports", "loadbalancers")
}

// failing answers requests for ports with the statuses of their hosts.
type failing map[string]int

func (f failing) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/ports") {
		text, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		for host, status := range f {
			if bytes.Contains(text, []byte(host)) {
				return &http.Response{
					StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("failed")), Request: req, ProtoMajor: 1,
				}, nil
			}
		}
		req.Body = io.NopCloser(bytes.NewReader(text))
	}
	return http.DefaultTransport.RoundTrip(req)
}

// Of two requests at the same time, one is refused and the other one is not answered in time: the other one is waited for.
func TestLateBesideRefused(t *testing.T) {
	for _, hosts := range []failing{
		{"host-n1": http.StatusBadRequest, "host-n2": http.StatusGatewayTimeout}, {"host-n1": http.StatusGatewayTimeout, "host-n2": http.StatusBadRequest},
	} {
		r := newRig(t, slices.Concat(blue(), node("n1"), node("n2"), pods("n1", 3), pods("n2", 3))...)
		r.cloud.way = hosts
		r.open.held.Store(r.cloud.session(t))
		r.addBlue()
		if _, err := r.ports(time.Now).Reconcile(t.Context(), request("blue")); err == nil {
			t.Error("no error")
		}
		if left := r.open.late.Left("uid-blue"); left == 0 {
			t.Errorf("with %v, a deletion waits for nothing", hosts)
		}
	}
}
