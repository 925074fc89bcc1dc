// Package metricstest checks metrics in tests.
package metricstest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"weft.dev/weft/internal/metrics"
)

// HasLines fails the test for each line that is not among the agent's metrics.
func HasLines(t testing.TB, m *metrics.Agent, lines ...string) {
	t.Helper()
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	for _, line := range lines {
		if !strings.Contains(answer.Body.String(), line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}
