package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
)

// silent is an API server that never answers.
type silent struct{}

// RoundTrip implements http.RoundTripper.
func (silent) RoundTrip(request *http.Request) (*http.Response, error) {
	<-request.Context().Done()
	return nil, request.Context().Err()
}

// An API server that does not answer does not block the agent.
func TestReportDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients, err := kubernetes.NewForConfig(&rest.Config{Host: "http://192.0.2.1", Transport: silent{}})
		if err != nil {
			t.Fatal(err)
		}
		err = reportNotReady(t.Context(), clients, "node", errors.New("a reason"))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("reporting: %v", err)
		}
	})
}

// The first report needs no request if the node that was read at the start has the condition. Any other report has a look.
func TestLookAhead(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{readyCondition("")}}}
	clients := fake.NewClientset(node)
	requests := func(report func() error) (verbs []string) {
		t.Helper()
		clients.ClearActions()
		if err := report(); err != nil {
			t.Fatal(err)
		}
		for _, action := range clients.Actions() {
			verbs = append(verbs, action.GetVerb())
		}
		return verbs
	}
	r := &readiness{clients: clients, node: "n", log: slog.New(slog.DiscardHandler)}
	ready := func(warning string) func() error { return func() error { return r.ready(t.Context(), warning) } }
	look := func() error { return r.lookAhead(t.Context())() }
	for _, step := range []struct {
		what string
		do   func() error
		want []string
	}{
		{"the node is read", look, []string{"get"}},
		{"the first report", ready(""), nil},
		{"the second one", ready(""), []string{"get"}},
		{"another warning", ready("closed"), []string{"get", "patch"}},
		{"the node is read again", look, []string{"get"}},
		{"the same condition", ready("closed"), nil},
		{"the node is read once more", look, []string{"get"}},
		{"it is not ready after all", func() error { r.notReady(t.Context(), errors.New("no switch")); return nil }, []string{"get", "patch"}},
		{"it is ready", ready("closed"), []string{"get", "patch"}},
	} {
		if have := requests(step.do); !slices.Equal(have, step.want) {
			t.Errorf("%s: the requests are %v, want %v", step.what, have, step.want)
		}
	}
}
