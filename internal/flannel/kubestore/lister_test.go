package kubestore

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"weft.dev/weft/internal/flannel/lease"
)

// TestPages: Nodes are listed in pages of the latest state, and what a lease does not depend on is removed from each.
func TestPages(t *testing.T) {
	keys, err := lease.NewKeys(lease.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	const pages = 3
	var requests []string
	source := &cache.ListWatch{ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
		requests = append(requests, fmt.Sprintf("%s %s %d", o.ResourceVersion, o.Continue, o.Limit))
		page := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: fmt.Sprint("page ", len(requests))}}
		if len(requests) == pages {
			page.Continue = ""
		}
		node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", len(requests)), Annotations: map[string]string{keys.PublicIP: "192.0.2.1", "other": "x"}}}
		node.Status.Images = []corev1.ContainerImage{{Names: []string{"image"}}}
		page.Items = append(page.Items, node)
		return page, nil
	}}
	l := &lister{source, source, New(Options{Keys: keys}).strip}
	listed, err := l.ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"  500", " page 1 500", " page 2 500"}; fmt.Sprint(requests) != fmt.Sprint(want) {
		t.Errorf("requests %q, want %q", requests, want)
	}
	all, ok := listed.(*corev1.NodeList)
	if !ok || len(all.Items) != pages || all.ResourceVersion != "7" || all.Continue != "" {
		t.Fatalf("listed %+v", listed)
	}
	for i, node := range all.Items {
		if node.Name != fmt.Sprint("n", i+1) || len(node.Status.Images) > 0 || len(node.Annotations) != 1 {
			t.Errorf("node %d: %+v", i, node)
		}
	}
}
