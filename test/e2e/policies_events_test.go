//go:build lab

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/internal/policy"
)

// An invalid policy gets an event with the reason, from the node that has a pod of it, once for each change.
func TestPolicyReportsProblems(t *testing.T) {
	s := newPolicyScene(t, "problems")
	server := map[string]string{"app": "server"}
	notes := func(ctx context.Context) ([]string, error) {
		list, err := s.client.EventsV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "reason=PolicyNotAsSpecified"})
		if err != nil {
			return nil, err
		}
		var all []string
		for i := range list.Items {
			if e := &list.Items[i]; e.Regarding.Kind == "NetworkPolicy" && e.Regarding.Name == "problems" && e.Regarding.UID != "" {
				all = append(all, e.Note)
			}
		}
		slices.Sort(all)
		return all, nil
	}
	var want []string
	for _, value := range []string{"always", "never"} {
		s.annotations = map[string]string{policy.AnnotationEstablished: value}
		s.policy(t, "problems", server, ingress())
		want = append(want, fmt.Sprintf("%q is neither keep nor end", value))
		await(t, "the event of "+value, func(ctx context.Context) error {
			got, err := notes(ctx)
			if err == nil && !slices.EqualFunc(got, want, func(note, part string) bool { return strings.HasPrefix(note, "n1: ") && strings.Contains(note, part) }) {
				err = fmt.Errorf("the events are %q", got)
			}
			return err
		})
		s.reach(t, "no client", map[uint16][3]bool{sourcePort: {}})
	}
	if got, err := notes(t.Context()); err != nil || len(got) != len(want) {
		t.Errorf("after all the events are %q, %v", got, err)
	}
}
