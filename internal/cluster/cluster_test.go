package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"weft.dev/weft/internal/cluster/plan"
	"weft.dev/weft/internal/metrics"
)

// synced is a source that has been read, or that fails with err.
type synced struct {
	source.TypedSource[Everything]
	err error
}

func (s *synced) WaitForSync(context.Context) error { return s.err }

func asked(handler http.Handler, path string) (int, string) {
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, http.NoBody))
	return answer.Code, answer.Body.String()
}

func TestReadiness(t *testing.T) {
	s := NewReadiness(metrics.NewController("v1"))
	expect := func(code int, want string) {
		t.Helper()
		if got, body := asked(s.Server().Handler(), "/readyz"); got != code || body != want {
			t.Errorf("%d %q, want %d %q", got, body, code, want)
		}
		if got, _ := asked(s.Server().Handler(), "/healthz"); got != http.StatusOK {
			t.Errorf("it does not live: %d", got)
		}
	}
	nodes := s.Reading("nodes", &synced{})
	broken := s.Reading("hostsubnets", &synced{err: errors.New("no such kind")})
	networks := s.Reading("clusternetworks", &synced{})
	s.Reading("clusternetworks", &synced{}) // by another controller
	expect(503, "[-]leader-election: this replica has not joined the leader election yet\n[+]caches\n")
	s.elects = true
	expect(200, "[+]leader-election\n[+]caches\n") // a replica that is not the leader reads nothing
	s.lead(true)
	expect(503, "[+]leader-election\n[-]caches: not read yet: clusternetworks, hostsubnets, nodes\n")
	for _, read := range []source.TypedSource[Everything]{nodes, networks} {
		if err := read.(*readSource).WaitForSync(t.Context()); err != nil { //nolint:forcetypeassert // it is made here
			t.Error(err)
		}
	}
	if err := broken.(*readSource).WaitForSync(t.Context()); err == nil { //nolint:forcetypeassert // it is made here
		t.Error("a kind that cannot be read is taken for read")
	}
	expect(503, "[+]leader-election\n[-]caches: not read yet: clusternetworks, hostsubnets\n")
	s.unread = nil
	s.answered(errors.New("connection refused"))
	expect(200, "[+]leader-election\n[+]caches\n[!]api-server: the API server does not answer, and changes wait until it does: connection refused\n")
	s.answered(fmt.Errorf("get: %w", context.Canceled)) // this error changes nothing
	expect(200, "[+]leader-election\n[+]caches\n[!]api-server: the API server does not answer, and changes wait until it does: connection refused\n")
	s.answered(nil)
	expect(200, "[+]leader-election\n[+]caches\n")
}

func TestWritesAreReported(t *testing.T) {
	counters := metrics.NewController("v1").For("vpc")
	resource := schema.GroupResource{Resource: "hostsubnets"}
	for _, err := range []error{
		nil, errors.New("refused"), apierrors.NewConflict(resource, "a", nil), apierrors.NewNotFound(resource, "a"),
		apierrors.NewAlreadyExists(resource, "a"), apierrors.NewForbidden(resource, "a", nil),
	} {
		if got := countWrite(counters, "update", err); !errors.Is(got, err) {
			t.Errorf("%v became %v", err, got)
		}
	}
	_, page := asked(counters.Handler(), "/metrics")
	for _, want := range []string{`{network="vpc",result="ok",verb="update"} 1`, `{network="vpc",result="error",verb="update"} 2`, `{network="vpc",result="conflict",verb="update"} 3`} {
		if !strings.Contains(page, "weft_controller_writes_total"+want) {
			t.Errorf("no %s", want)
		}
	}
}

func sent(recorder *events.FakeRecorder) []string {
	var all []string
	for {
		select {
		case event := <-recorder.Events:
			all = append(all, event)
		default:
			return all
		}
	}
}

func TestReporterReportsOnceWhileAProblemLasts(t *testing.T) {
	recorder, counters := events.NewFakeRecorder(16), metrics.NewController("v1")
	r := NewReporter("subnets", "network.openshift.io/v1", recorder, counters)
	problem := func(name, message string) plan.Problem {
		return plan.Problem{Object: plan.Object{Kind: "Node", Name: name}, Reason: "Exhausted", Message: message}
	}
	expect := func(count, lasting int, problems ...plan.Problem) {
		t.Helper()
		r.Report(problems, "AssignSubnet")
		if got := sent(recorder); len(got) != count {
			t.Errorf("events %q, want %d", got, count)
		}
		_, page := asked(counters.Handler(), "/metrics")
		want := fmt.Sprintf(`weft_controller_problems{controller="subnets",network="none",reason="Exhausted"} %d`, lasting)
		if has := strings.Contains(page, want); has != (lasting > 0) && strings.Contains(page, "weft_controller_problems{") {
			t.Errorf("no %s", want)
		}
	}
	a, b := problem("a", "no subnet"), problem("b", "no subnet")
	expect(2, 2, a, b, a)
	expect(0, 2, a, b)
	expect(1, 2, a, problem("b", "still none"))
	expect(0, 1, a)
	expect(0, 0)
	expect(1, 1, a) // it is back
}

func TestNotesFitIntoEvents(t *testing.T) {
	if got := Note("short"); got != "short" {
		t.Error(got)
	}
	if got := Note(strings.Repeat("ä", 600)); len(got) > 1024 || !utf8.ValidString(got) || !strings.HasSuffix(got, "ä...") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}
