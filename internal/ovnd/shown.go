package ovnd

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Names of the ConfigMaps in the release's namespace, which the chart creates.
const (
	// ConfigMap has the databases' endpoints and certificate; the guard writes it.
	ConfigMap = "weft-ovn"
	// ClientsConfigMap has the certificates of controllers, by their hosts' names; the controllers write it.
	ClientsConfigMap = "weft-ovn-clients"
)

// Keys of ConfigMap.
const (
	northboundKey  = "northbound"
	southboundKey  = "southbound"
	certificateKey = "certificate"
)

// requestTimeout limits a request to the API server.
const requestTimeout = 10 * time.Second

var errUnpublished = errors.New("the guard has published no northbound database yet: is the pod weft-ovn-0 ready?")

// Northbound finds the northbound database for a controller.
type Northbound struct {
	keys      Keys
	host      string
	namespace string
	client    kubernetes.Interface
}

// NewNorthbound returns a Northbound for the controller on a host. It does not connect.
func NewNorthbound(config *rest.Config, namespace, host string, now time.Time) (*Northbound, error) {
	keys, err := NewKeys(host, now)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return &Northbound{keys: keys, host: host, namespace: namespace, client: client}, nil
}

// Locate publishes the controller's certificate, and returns the northbound database's endpoint.
func (n *Northbound) Locate(ctx context.Context) ([]string, *tls.Config, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	maps := n.client.CoreV1().ConfigMaps(n.namespace)
	shown, err := maps.Get(ctx, ClientsConfigMap, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("read ConfigMap %s/%s: %w", n.namespace, ClientsConfigMap, err)
	}
	if shown.Data[n.host] != string(n.keys.Certificate) {
		if err := patch(ctx, n.client, n.namespace, ClientsConfigMap, map[string]string{n.host: string(n.keys.Certificate)}); err != nil {
			return nil, nil, err
		}
	}
	published, err := maps.Get(ctx, ConfigMap, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("read ConfigMap %s/%s: %w", n.namespace, ConfigMap, err)
	}
	if published.Data[northboundKey] == "" {
		return nil, nil, errUnpublished
	}
	config, err := clientTLS(n.keys, []byte(published.Data[certificateKey]))
	return []string{published.Data[northboundKey]}, config, err
}

// publish sets keys of the ConfigMap of the databases, if they differ.
func publish(ctx context.Context, client kubernetes.Interface, namespace string, want map[string]string) error {
	have, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, ConfigMap, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read ConfigMap %s/%s: %w", namespace, ConfigMap, err)
	}
	for key, value := range want {
		if have.Data[key] != value {
			return patch(ctx, client, namespace, ConfigMap, want)
		}
	}
	return nil
}

// patch sets keys of a ConfigMap; other keys stay.
func patch(ctx context.Context, client kubernetes.Interface, namespace, name string, data map[string]string) error {
	text, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return fmt.Errorf("write ConfigMap %s/%s: %w", namespace, name, err)
	}
	_, err = client.CoreV1().ConfigMaps(namespace).Patch(ctx, name, types.MergePatchType, text, metav1.PatchOptions{FieldManager: serverName})
	if err != nil {
		return fmt.Errorf("write ConfigMap %s/%s: %w", namespace, name, err)
	}
	return nil
}
