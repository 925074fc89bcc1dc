package cluster

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// OnlyServed removes from cache options the kinds of other projects (unstructured) that the API server does not serve: no cache can be made
// with them. They are cached whole once they are served.
func OnlyServed(config *rest.Config, options map[client.Object]ctrlcache.ByObject) error {
	requests, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	mapper, err := apiutil.NewDynamicRESTMapper(config, requests)
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	for object := range options {
		kind := object.GetObjectKind().GroupVersionKind()
		if _, others := object.(*unstructured.Unstructured); !others {
			continue
		}
		if _, err := mapper.RESTMapping(kind.GroupKind(), kind.Version); meta.IsNoMatchError(err) {
			delete(options, object)
		}
	}
	return nil
}
