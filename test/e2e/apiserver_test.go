//go:build lab

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/controlplane"
	"weft.dev/weft/lab/pki"
	"weft.dev/weft/test/traffic"
)

// backends are two pods, one on each node, that serve HTTP, and HTTPS for the API server.
type backends struct {
	*serviceScene
	clients *x509.CertPool // the CA of the API server's certificate for aggregated APIs
	ca      []byte         // the CA of the pods' certificates
	pair    tls.Certificate
	webhook string // the Service's name
	pods    []*lab.Pod
}

const (
	plainPort  = 8080
	securePort = 8443
	// extensionGroup is the API group that the pods serve.
	extensionGroup = "tests.weft.dev"
)

// The API server reaches pods on every node: as a proxy, as the client of a webhook, and as the client of an aggregated API.
func TestAPIServerReachesPods(t *testing.T) {
	b := newBackends(t, "backend")
	get := func(ctx context.Context, path string) (string, error) {
		raw, err := b.client.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(ctx)
		return string(raw), err
	}
	t.Run("proxy", func(t *testing.T) {
		for _, p := range b.pods {
			path := fmt.Sprintf("/api/v1/namespaces/default/pods/%s:%d/proxy/name", p.Name, plainPort)
			await(t, "pod "+p.Name+" through the API server", func(ctx context.Context) error {
				answer, err := get(ctx, path)
				if err == nil && answer != p.Name {
					err = fmt.Errorf("the answer is %q", answer)
				}
				return err
			})
		}
	})
	t.Run("webhook", b.judges)
	t.Run("aggregated API", func(t *testing.T) {
		b.serveAPI(t)
		await(t, "an aggregated API served by pods", func(ctx context.Context) error {
			answer, err := get(ctx, "/apis/"+extensionGroup+"/v1/hello")
			if err == nil && answer != "hello admin" {
				err = fmt.Errorf("the answer is %q", answer)
			}
			return err
		})
	})
}

func newBackends(t *testing.T, name string) *backends {
	t.Helper()
	c := cluster(t)
	client, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	b := &backends{serviceScene: &serviceScene{cluster: c, client: client}, webhook: name}
	b.certify(t)
	pods := &policyScene{cluster: c, client: client}
	for _, node := range c.Nodes() {
		p := pods.pod(t, lab.PodSpec{Node: node.Name, Name: name + "-" + node.Name})
		b.pods = append(b.pods, p)
		b.serve(t, p, plainPort, nil)
		b.serve(t, p, securePort, &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{b.pair}, ClientCAs: b.clients, ClientAuth: tls.VerifyClientCertIfGiven,
		})
	}
	tcp, plain, secure := corev1.ProtocolTCP, "plain", "secure"
	plainNumber, secureNumber := int32(plainPort), int32(securePort)
	b.service(t, name, func(o *corev1.Service) {
		o.Spec.Ports = []corev1.ServicePort{
			{Name: plain, Protocol: tcp, Port: 80, TargetPort: intstr.FromInt32(plainPort)},
			{Name: secure, Protocol: tcp, Port: 443, TargetPort: intstr.FromInt32(securePort)},
		}
	})
	b.endpoints(t, name, name, []discoveryv1.EndpointPort{
		{Name: &plain, Protocol: &tcp, Port: &plainNumber}, {Name: &secure, Protocol: &tcp, Port: &secureNumber},
	}, at(b.pods[0]), at(b.pods[1]))
	return b
}

// certify makes the pods' certificate, and reads the CA of the API server's.
func (b *backends) certify(t *testing.T) {
	t.Helper()
	ca, err := pki.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	host := b.webhook + ".default.svc"
	if err := ca.Issue(pki.Identity{File: "server", User: host, DNS: []string{host}}); err != nil {
		t.Fatal(err)
	}
	if b.pair, err = tls.LoadX509KeyPair(ca.Path("server.crt"), ca.Path("server.key")); err != nil {
		t.Fatal(err)
	}
	if b.ca, err = os.ReadFile(ca.CAFile()); err != nil {
		t.Fatal(err)
	}
	config, err := b.cluster.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	b.clients = x509.NewCertPool()
	if !b.clients.AppendCertsFromPEM(config.CAData) {
		t.Fatal("the kubeconfig has no authority")
	}
}

// serve answers in a pod until the test ends, with TLS if there is a configuration.
func (b *backends) serve(t *testing.T, p *lab.Pod, number uint16, secure *tls.Config) {
	t.Helper()
	var listener net.Listener
	err := traffic.In(p.Netns, func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(p.IPs[0], number).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if secure != nil {
		listener = tls.NewListener(listener, secure)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /name", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, p.Name) })
	mux.HandleFunc("POST /judge", judge)
	mux.HandleFunc("GET /apis/"+extensionGroup+"/v1", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: extensionGroup + "/v1",
		})
	})
	mux.HandleFunc("GET /apis/"+extensionGroup+"/v1/hello", greet)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)} // it ends in the middle of requests
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

// judge is a webhook that admits only ConfigMaps with the key "good".
func judge(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	var config corev1.ConfigMap
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "no review", http.StatusBadRequest)
		return
	}
	if err := json.Unmarshal(review.Request.Object.Raw, &config); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: config.Data["good"] != ""}
	if !review.Response.Allowed {
		review.Response.Result = &metav1.Status{Message: "the pod says no"}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// greet answers the API server, which names the user, and refuses other clients.
func greet(w http.ResponseWriter, r *http.Request) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || r.TLS.PeerCertificates[0].Subject.CommonName != controlplane.FrontProxy {
		http.Error(w, "the client has no certificate of the API server", http.StatusUnauthorized)
		return
	}
	_, _ = io.WriteString(w, "hello "+r.Header.Get("X-Remote-User"))
}

// judges registers the pods as a webhook for ConfigMaps with a label, and tests it.
func (b *backends) judges(t *testing.T) {
	const label = "weft.dev/judged"
	path, fail, none, number := "/judge", admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone, int32(443)
	hooks := b.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := hooks.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: b.webhook},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: b.webhook + "." + extensionGroup, FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				CABundle: b.ca, Service: &admissionregistrationv1.ServiceReference{Namespace: "default", Name: b.webhook, Path: &path, Port: &number},
			},
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{label: "yes"}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hooks.Delete(context.Background(), b.webhook, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	create := func(ctx context.Context, key string) error {
		_, err := b.client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: b.webhook, Labels: map[string]string{label: "yes"}}, Data: map[string]string{key: "x"},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	await(t, "a refusal by the webhook", func(ctx context.Context) error {
		if err := create(ctx, "bad"); err == nil || !strings.Contains(err.Error(), "the pod says no") {
			return fmt.Errorf("creation of a ConfigMap that the webhook refuses: %w", err)
		}
		return nil
	})
	if err := create(t.Context(), "good"); err != nil {
		t.Errorf("creation of a ConfigMap that the webhook admits: %v", err)
	}
}

// serveAPI registers the pods' API as an aggregated API.
func (b *backends) serveAPI(t *testing.T) {
	t.Helper()
	services := objects(t, b.cluster, "apiregistration.k8s.io", "apiservices")
	name := "v1." + extensionGroup
	_, err := services.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"group": extensionGroup, "version": "v1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100), "caBundle": b.ca,
			"service": map[string]any{"namespace": "default", "name": b.webhook, "port": int64(443)},
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := services.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}
