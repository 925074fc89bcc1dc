package agent

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"

	"k8s.io/client-go/kubernetes"
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
