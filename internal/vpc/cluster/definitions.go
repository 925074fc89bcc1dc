package cluster

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/vpc/nat"
)

// definitionsRetry is the interval of checks whether the API server serves NetworkAttachmentDefinitions. No watch reports a CRD that is
// installed later.
const definitionsRetry = 10 * time.Second

// watchDefinitions watches NetworkAttachmentDefinitions. Only NAT gateways need them. If the API server does not serve the kind, the watch
// begins once it does: with a source whose kind is not served, the whole controller would end after two minutes (see also cluster.OnlyServed).
func (r *reconciler) watchDefinitions(c controller.TypedController[cluster.Everything]) error {
	if !r.lacksDefinitions() {
		return watch[*unstructured.Unstructured](r, c, "network-attachment-definitions", nat.Definition())
	}
	r.log.Warn("NAT gateways cannot start: the definition of NetworkAttachmentDefinition is not installed: kubectl apply --server-side -f deploy/third-party")
	return r.tools.Manager.Add(leading(func(ctx context.Context) error { //nolint:wrapcheck // the manager says what it cannot add
		retry := time.NewTicker(definitionsRetry)
		defer retry.Stop()
		for r.lacksDefinitions() {
			select {
			case <-ctx.Done():
				return nil
			case <-retry.C:
			}
		}
		return c.Watch(source.TypedKind(r.tools.Manager.GetCache(), nat.Definition(), heard[*unstructured.Unstructured](&r.news))) //nolint:wrapcheck // the source says what failed
	}))
}

// lacksDefinitions reports whether the API server does not serve NetworkAttachmentDefinitions.
func (r *reconciler) lacksDefinitions() bool {
	kind := nat.Definition().GroupVersionKind()
	_, err := r.tools.Manager.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	return meta.IsNoMatchError(err)
}
