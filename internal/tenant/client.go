package tenant

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/realised"
)

// Result is the result for one namespace.
type Result struct {
	// Namespace is its name.
	Namespace string `json:"namespace"`
	// NetID is the current VNID; Was is the previous one.
	NetID uint32 `json:"netid"`
	Was   uint32 `json:"was"`
}

// Report is the result of a request.
type Report struct {
	// Namespaces are sorted by name.
	Namespaces []Result `json:"namespaces"`
	// Nodes is the number of the cluster's nodes, Realised that of the nodes where the change is in effect.
	Nodes    int `json:"nodes"`
	Realised int `json:"realised"`
	// Behind are the nodes where it is not, sorted.
	Behind []string `json:"behind,omitempty"`
}

// Client sends requests to one cluster.
type Client struct {
	objects client.WithWatch
}

// New returns a Client. It does not connect.
func New(config *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), networkv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register the kinds of objects: %w", err)
	}
	mapper := meta.NewDefaultRESTMapper(nil) // the kinds are known, so no discovery is needed
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	for _, kind := range []string{"ClusterNetwork", "HostSubnet", "NetNamespace"} {
		mapper.Add(networkv1.GroupVersion().WithKind(kind), meta.RESTScopeRoot)
	}
	objects, err := client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	return &Client{objects: objects}, nil
}

// Change requests a change and waits until the controller has made it; with everywhere, also until it is in effect on all nodes. progress
// is called with what Change waits for. If ctx ends first, the error says what was missing, and the report what is done.
func (c *Client) Change(ctx context.Context, r Request, everywhere bool, progress func(string)) (Report, error) {
	if err := c.checkMode(ctx); err != nil {
		return Report{}, err
	}
	names, err := c.names(ctx, &r)
	if err != nil {
		return Report{}, err
	}
	var all networkv1.NetNamespaceList
	if err := c.objects.List(ctx, &all); err != nil {
		return Report{}, fmt.Errorf("listing NetNamespaces: %w", err)
	}
	have := map[string]*networkv1.NetNamespace{}
	for i := range all.Items {
		have[all.Items[i].Name] = &all.Items[i]
	}
	if err := r.check(names, have); err != nil {
		return Report{}, err
	}
	change := &change{request: &r, was: have, waits: map[string]bool{}, asked: map[string]bool{}, now: map[string]*networkv1.NetNamespace{}}
	for _, name := range names {
		change.waits[name] = true
	}
	if err := c.make(ctx, change, names, all.ResourceVersion, progress); err != nil {
		return change.report(names), err
	}
	report := change.report(names)
	if !everywhere {
		return report, nil
	}
	err = c.realise(ctx, &report, change.version, progress)
	return report, err
}

// change is a request in progress.
type change struct {
	request *Request
	was     map[string]*networkv1.NetNamespace
	// waits are the namespaces whose change is not made yet; now has the changed NetNamespaces.
	waits map[string]bool
	now   map[string]*networkv1.NetNamespace
	// asked are the namespaces whose annotation was seen.
	asked map[string]bool
	// version is the resourceVersion of the last change of a VNID; 0: no change was needed.
	version uint64
}

func (ch *change) report(names []string) Report {
	var report Report
	for _, name := range names {
		if nn := ch.now[name]; nn != nil {
			report.Namespaces = append(report.Namespaces, Result{Namespace: name, NetID: nn.NetID, Was: ch.was[name].NetID})
		}
	}
	return report
}

// make writes the annotations and waits until the controller has removed all of them. It begins to watch before that, so that it sees the
// write that removes an annotation, whose version it records.
func (c *Client) make(ctx context.Context, ch *change, names []string, since string, progress func(string)) error {
	events, err := realised.Watch(ctx, c.objects, &networkv1.NetNamespaceList{}, since)
	if err != nil {
		return err
	}
	defer events.Stop()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, networkv1.AnnotationChangeNetwork, ch.request.annotation)
	for _, name := range names {
		nn := &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := c.objects.Patch(ctx, nn, client.RawPatch(types.MergePatchType, patch)); err != nil {
			return fmt.Errorf("NetNamespace %s: %w", name, err)
		}
		// The same request may exist already: then the patch changes nothing, and causes no event.
		ch.asked[name] = ch.was[name].Annotations[networkv1.AnnotationChangeNetwork] == ch.request.annotation
	}
	progress("waiting for the controller to change the VNIDs")
	for len(ch.waits) > 0 {
		event, err := realised.Next(ctx, events)
		if err != nil {
			return fmt.Errorf("waiting for the controller to change %d NetNamespaces (does one run? see weft status): %w", len(ch.waits), err)
		}
		if err := ch.see(event); err != nil {
			return err
		}
	}
	return nil
}

// see processes the state of a NetNamespace.
func (ch *change) see(event watch.Event) error {
	nn, ok := event.Object.(*networkv1.NetNamespace)
	if !ok || !ch.waits[nn.Name] {
		return nil
	}
	if event.Type == watch.Deleted {
		return fmt.Errorf("NetNamespace %s was deleted", nn.Name)
	}
	if _, waits := nn.Annotations[networkv1.AnnotationChangeNetwork]; waits {
		ch.asked[nn.Name] = true
		return ch.refused(nn)
	}
	if ch.asked[nn.Name] {
		ch.made(nn)
	}
	return nil
}

// made records a change that is made.
func (ch *change) made(nn *networkv1.NetNamespace) {
	delete(ch.waits, nn.Name)
	ch.now[nn.Name] = nn
	if version, err := strconv.ParseUint(nn.ResourceVersion, 10, 64); err == nil && nn.NetID != ch.was[nn.Name].NetID {
		ch.version = max(ch.version, version)
	}
}

// refused returns why the controller refuses the request in the annotation. A message about a previous request counts only if that request
// was the same.
func (ch *change) refused(nn *networkv1.NetNamespace) error {
	for _, c := range nn.Status.Conditions {
		if c.Type == networkv1.ConditionValid && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, strconv.Quote(ch.request.annotation)) {
			return fmt.Errorf("NetNamespace %s: %s", nn.Name, c.Message)
		}
	}
	return nil
}

// Patience is the maximum duration of a change on a healthy cluster, including the steps of the move and the nodes' reports.
const Patience = time.Minute
