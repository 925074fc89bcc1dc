package cluster

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNewsBeforeTheFirstRead: until everything is read for the first time, nothing is recorded, however long that takes; an event after the
// start of the read is not lost.
func TestNewsBeforeTheFirstRead(t *testing.T) {
	var n news
	pod := func(i int) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns1", Name: fmt.Sprint("pod-", i)}}
	}
	for i := range 1000 {
		n.add(pod(i), true)
	}
	if len(n.changed)+len(n.deleted) > 0 {
		t.Errorf("%d objects are kept before anything was read", len(n.changed))
	}
	if changed, _, _ := n.take(); len(changed) > 0 {
		t.Errorf("news: %v", changed)
	}
	n.add(pod(1), true)
	if changed, deleted, _ := n.take(); len(changed) != 1 || !deleted[keyOf(pod(1))] {
		t.Errorf("news %v, deleted %v", changed, deleted)
	}
}
