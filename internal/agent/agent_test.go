package agent

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
)

func TestReport(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
	}}}
	clients := clientset.NewClientset(node)
	condition := func() corev1.NodeCondition {
		t.Helper()
		have, err := clients.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(have.Status.Conditions) != 2 {
			t.Fatalf("conditions %+v", have.Status.Conditions)
		}
		for _, c := range have.Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable {
				return c
			}
		}
		t.Fatal("no condition")
		return corev1.NodeCondition{}
	}
	writes := func() (n int) {
		for _, action := range clients.Actions() {
			if action.GetVerb() != "get" {
				n++
				if action.GetSubresource() != "status" {
					t.Errorf("%s of %s/%s", action.GetVerb(), action.GetResource().Resource, action.GetSubresource())
				}
			}
		}
		return n
	}
	for range 3 {
		if err := reportNotReady(t.Context(), clients, "n", errors.New("no switch")); err != nil {
			t.Fatal(err)
		}
	}
	first := condition()
	if first.Status != corev1.ConditionTrue || first.Reason != reasonNotReady || first.Message != "no switch" || writes() != 1 {
		t.Errorf("%d writes, condition %+v", writes(), first)
	}
	if err := reportNotReady(t.Context(), clients, "n", errors.New("no database")); err != nil {
		t.Fatal(err)
	}
	if second := condition(); second.Message != "no database" || !second.LastTransitionTime.Equal(&first.LastTransitionTime) || writes() != 2 {
		t.Errorf("%d writes, condition %+v", writes(), second)
	}
	for range 3 {
		if err := reportReady(t.Context(), clients, "n"); err != nil {
			t.Fatal(err)
		}
	}
	if last := condition(); last.Status != corev1.ConditionFalse || last.Reason != reasonReady || writes() != 3 {
		t.Errorf("%d writes, condition %+v", writes(), last)
	}
	if err := reportReady(t.Context(), clients, "missing"); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("of a node that is not there: %v", err)
	}
}

func TestOptions(t *testing.T) {
	good := Options{Config: &rest.Config{}, Node: "n"}.withDefaults()
	if err := good.validate(); err != nil || good.Paths.StateDir != DefaultStateDir || good.Verify != DefaultVerify {
		t.Errorf("%v %+v", err, good)
	}
	for words, change := range map[string]func(*Options){
		"kubeconfig": func(o *Options) { o.Config = nil },
		"node name":  func(o *Options) { o.Node = "" },
		"datapath":   func(o *Options) { o.Datapath = "dpdk" },
	} {
		bad := good
		change(&bad)
		if err := bad.validate(); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("error %v, want one with %q", err, words)
		}
	}
}
