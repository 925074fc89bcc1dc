package apiservertest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Definitions returns definitions of custom resources.
type Definitions func() ([]*apiextensionsv1.CustomResourceDefinition, error)

// DefinitionIn returns the definition in a file.
func DefinitionIn(path string) Definitions {
	return func() ([]*apiextensionsv1.CustomResourceDefinition, error) {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, definition); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return []*apiextensionsv1.CustomResourceDefinition{definition}, nil
	}
}

// MainWith is Main with a server that serves the defined kinds. server is set to it.
func MainWith(m *testing.M, server **Server, kinds ...Definitions) int {
	return Main(m, func(s *Server) error {
		*server = s
		for _, definitions := range kinds {
			all, err := definitions()
			if err != nil {
				return err
			}
			if err := s.InstallCRDs(context.Background(), all); err != nil {
				return err
			}
		}
		return nil
	})
}

// InstallCRDs creates the definitions, and waits until the server serves them. A server that another program has started may have them.
func (s *Server) InstallCRDs(ctx context.Context, crds []*apiextensionsv1.CustomResourceDefinition) error {
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		return err
	}
	c, err := client.New(s.Config(), client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	for _, crd := range crds {
		if err := c.Create(ctx, crd.DeepCopy()); err != nil && (s.dir != "" || !apierrors.IsAlreadyExists(err)) {
			return fmt.Errorf("create %s: %w", crd.Name, err)
		}
	}
	for _, crd := range crds {
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, readyTimeout, true, func(ctx context.Context) (bool, error) {
			var got apiextensionsv1.CustomResourceDefinition
			if err := c.Get(ctx, client.ObjectKey{Name: crd.Name}, &got); err != nil {
				return false, err
			}
			return slices.ContainsFunc(got.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
				return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
			}), nil
		})
		if err != nil {
			return fmt.Errorf("wait for %s: %w", crd.Name, err)
		}
	}
	return nil
}
