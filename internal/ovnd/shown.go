package ovnd

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
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

// Keys of ConfigMap. Each server of a cluster has keys of its own: with "-" and its number.
const (
	northboundKey  = "northbound"
	southboundKey  = "southbound"
	certificateKey = "certificate"
	// relayKey is where a guard connects the other servers of a cluster with its own.
	relayKey = "relay"
	// clusterSuffix follows the key of a database for the ID of its cluster.
	clusterSuffix = "-cluster"
)

// newCluster as the ID of a cluster requests a new one, in place of one that has lost more servers than it can replace.
const newCluster = "new"

// key is a key of this server.
func (o Options) key(name string) string {
	if o.clustered() {
		return serverKey(name, o.Server)
	}
	return name
}

func serverKey(name string, server int) string { return name + "-" + strconv.Itoa(server) }

func clusterKey(db Database) string {
	if db == NorthboundDB {
		return northboundKey + clusterSuffix
	}
	return southboundKey + clusterSuffix
}

// serverKeys returns a key of the only server, and those of the servers of a cluster.
func serverKeys(name string) []string {
	all := []string{name}
	for i := range clusterSize {
		all = append(all, serverKey(name, i))
	}
	return all
}

// ofServers returns the values of a key, of the only server or of those of a cluster.
func ofServers(data map[string]string, name string) []string {
	var all []string
	for _, key := range serverKeys(name) {
		if data[key] != "" {
			all = append(all, data[key])
		}
	}
	return all
}

// serverCertificates returns the certificates of all servers, by which clients recognize them.
func serverCertificates(data map[string]string) ([]byte, error) {
	var list []byte
	names := serverKeys(serverName)
	for i, key := range serverKeys(certificateKey) {
		if data[key] == "" {
			continue
		}
		certificate, err := checkShown([]byte(data[key]), names[i])
		if err != nil {
			return nil, err
		}
		list = append(list, certificate...)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("certificate of OVN's databases: %w", errCertificate)
	}
	return list, nil
}

// Errors of a number of servers that was changed after the installation.
var (
	errWasOne = errors.New("the databases were installed with one server, and this is one of three: set vpc.ovn.replicas back to 1, " +
		"or change the number as docs/vpc.md describes")
	errWasThree = errors.New("the databases were installed with three servers, and this is the only one: set vpc.ovn.replicas back to 3, " +
		"or change the number as docs/vpc.md describes")
)

// checkServers refuses another number of servers than that of the installation.
func (o Options) checkServers(data map[string]string) error {
	switch {
	case o.clustered() && data[northboundKey] != "":
		return errWasOne
	case !o.clustered() && data[clusterKey(NorthboundDB)] != "":
		return errWasThree
	}
	return nil
}

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

// Locate publishes the controller's certificate, and returns the endpoints of the northbound database's servers.
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
	endpoints := ofServers(published.Data, northboundKey)
	if len(endpoints) == 0 {
		return nil, nil, errUnpublished
	}
	servers, err := serverCertificates(published.Data)
	if err != nil {
		return nil, nil, err
	}
	config, err := clientTLS(n.keys, servers)
	return endpoints, config, err
}

// recorded returns the contents of the ConfigMap of the databases.
func (o Options) recorded(ctx context.Context, client kubernetes.Interface) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	have, err := client.CoreV1().ConfigMaps(o.Namespace).Get(ctx, ConfigMap, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read ConfigMap %s/%s: %w", o.Namespace, ConfigMap, err)
	}
	return have.Data, o.checkServers(have.Data)
}

// publish sets keys of the ConfigMap of the databases, if they differ.
func (o Options) publish(ctx context.Context, client kubernetes.Interface, want map[string]string) error {
	have, err := o.recorded(ctx, client)
	if err != nil {
		return err
	}
	for key, value := range want {
		if have[key] != value {
			return patch(ctx, client, o.Namespace, ConfigMap, want)
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
