// Package cluster is the flannel network in the controller: it reports whether the cluster is configured for flannel. Subnets are the
// Nodes' podCIDRs, so there is nothing to allocate.
package cluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/cluster"
)

// ConfigMap is the name of flannel's configuration; KeyNet and KeyCNI are its files.
const (
	ConfigMap = "kube-flannel-cfg"
	KeyNet    = "net-conf.json"
	KeyCNI    = "cni-conf.json"
)

// Namespaces returns the namespaces in which the configuration is searched; the first that has one is used.
func Namespaces() []string { return []string{"kube-flannel", metav1.NamespaceSystem} }

// Find returns the configuration, or a NotFound error.
func Find(ctx context.Context, objects client.Reader) (*corev1.ConfigMap, error) {
	for _, namespace := range Namespaces() {
		var config corev1.ConfigMap
		err := objects.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ConfigMap}, &config)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if _, ok := config.Data[KeyNet]; ok {
			return &config, nil
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("configmaps"), ConfigMap)
}

// Part returns the network's part of the controller.
func Part() cluster.Part {
	return cluster.Part{
		Name:    "flannel",
		Objects: []cluster.Object{{Resource: "configmaps", Verbs: []string{"get"}}},
		Configured: func(ctx context.Context, live client.Reader) (bool, error) {
			_, err := Find(ctx, live)
			if apierrors.IsNotFound(err) {
				return false, nil
			}
			return err == nil, err
		},
		SetUp: func(cluster.Tools) error { return nil },
	}
}
