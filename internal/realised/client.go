package realised

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
)

// Report says on which nodes an object is in effect.
type Report struct {
	Kind Kind `json:"kind"`
	// Object is the object's name, after its namespace if it has one.
	Object string `json:"object"`
	// Version is the resourceVersion that the report is about.
	Version string `json:"version"`
	Count
}

// Text writes the report as text.
func (r *Report) Text(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s %s: realised on %d of %d nodes\n", r.Kind, r.Object, r.Realised, r.Nodes); err != nil || r.All() {
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "\nNODE\tNOT REALISED BECAUSE") // Flush returns the error
	for _, node := range r.Not {
		_, _ = fmt.Fprintf(table, "%s\t%s\n", node.Name, strings.ReplaceAll(node.Reason, "\n", "; "))
		if node.Next != "" {
			_, _ = fmt.Fprintf(table, "\t-> %s\n", node.Next)
		}
	}
	return table.Flush()
}

// Client reads from one cluster.
type Client struct{ objects client.WithWatch }

// New returns a Client. It does not connect.
func New(config *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), networkingv1.AddToScheme(scheme), networkv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register the kinds of objects: %w", err)
	}
	mapper := meta.NewDefaultRESTMapper(nil) // the kinds are known, so no discovery is needed
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(networkingv1.SchemeGroupVersion.WithKind(string(NetworkPolicy)), meta.RESTScopeNamespace)
	mapper.Add(networkv1.GroupVersion().WithKind(string(EgressNetworkPolicy)), meta.RESTScopeNamespace)
	for _, kind := range []string{"ClusterNetwork", "HostSubnet", string(NetNamespace)} {
		mapper.Add(networkv1.GroupVersion().WithKind(kind), meta.RESTScopeRoot)
	}
	objects, err := client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	return &Client{objects: objects}, nil
}

// ParseKind returns the kind for a word: its name, in any case and also in the plural, or kubectl's short name.
func ParseKind(word string) (Kind, error) {
	for kind, words := range map[Kind][]string{
		NetworkPolicy: {"networkpolicy", "networkpolicies", "netpol"}, EgressNetworkPolicy: {"egressnetworkpolicy", "egressnetworkpolicies"},
		NetNamespace: {"netnamespace", "netnamespaces"},
	} {
		if slices.Contains(words, strings.ToLower(word)) {
			return kind, nil
		}
	}
	return "", fmt.Errorf("nodes do not report on kind %q: give networkpolicy, egressnetworkpolicy or netnamespace", word)
}

// explainTimeout bounds the list of Nodes, without which the report has less detail.
const explainTimeout = 5 * time.Second

// Ask reports on which nodes an object, in its current version, is in effect. With wait, it waits until that is true for all nodes, and
// calls progress with the status so far. If ctx ends first, it returns a complete report and the error of ctx.
func (c *Client) Ask(ctx context.Context, kind Kind, name string, wait bool, progress func(string)) (Report, error) {
	mode, err := c.mode(ctx, kind)
	if err != nil {
		return Report{}, err
	}
	subject, err := c.subject(ctx, kind, name)
	if err != nil {
		return Report{}, err
	}
	subjects := []Subject{*subject}
	if kind == NetNamespace && mode == clusternetwork.ModeMultitenant {
		subjects = append(subjects, Subject{Kind: VNID, Name: name, Version: subject.Version})
	}
	report := Report{Kind: kind, Object: name, Version: fmt.Sprint(subject.Version)}
	asked, reported := false, -1
	err = Follow(ctx, c.objects, NewTally(JudgeAll(subjects...)), func(count Count) bool {
		asked, report.Count = true, count
		if wait && !count.All() && count.Realised != reported {
			reported = count.Realised
			progress(count.Summary())
		}
		return !wait || count.All()
	})
	if !asked {
		return Report{}, err
	}
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), explainTimeout) // also after ctx has ended
	defer cancel()
	c.explain(short, &report)
	return report, err
}

// mode returns the network's mode, and an error if objects of the kind have no effect in it.
func (c *Client) mode(ctx context.Context, kind Kind) (clusternetwork.Mode, error) {
	var network networkv1.ClusterNetwork
	if err := c.objects.Get(ctx, client.ObjectKey{Name: networkv1.ClusterNetworkDefault}, &network); err != nil {
		return "", fmt.Errorf("ClusterNetwork %s: %w", networkv1.ClusterNetworkDefault, err)
	}
	config, err := clusternetwork.Parse(&network)
	if err != nil {
		return "", err
	}
	if kind == NetworkPolicy && config.Mode != clusternetwork.ModeNetworkPolicy || !config.Mode.HasVNIDs() {
		return "", fmt.Errorf("ClusterNetwork %s: pluginName is %q: %s objects have no effect with it", networkv1.ClusterNetworkDefault, network.PluginName, kind)
	}
	return config.Mode, nil
}

// subject reads the object.
func (c *Client) subject(ctx context.Context, kind Kind, name string) (*Subject, error) {
	key := client.ObjectKey{Name: name}
	if kind != NetNamespace {
		var ok bool
		if key.Namespace, key.Name, ok = strings.Cut(name, "/"); !ok || key.Namespace == "" || key.Name == "" {
			return nil, fmt.Errorf("%q: give the %s as NAMESPACE/NAME", name, kind)
		}
	}
	var object client.Object
	switch kind {
	case NetworkPolicy:
		object = &networkingv1.NetworkPolicy{}
	case EgressNetworkPolicy:
		object = &networkv1.EgressNetworkPolicy{}
	default:
		object = &networkv1.NetNamespace{}
	}
	if err := c.objects.Get(ctx, key, object); err != nil {
		return nil, fmt.Errorf("%s %s: %w", kind, name, err)
	}
	version, err := Version(object.GetResourceVersion())
	if policy, is := object.(*networkv1.EgressNetworkPolicy); is {
		if since, known := Since(policy); known {
			version, err = since, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", kind, name, err)
	}
	return &Subject{Kind: kind, Name: name, Version: version}, nil
}

// Since returns the version since which a policy has its current content, if its status has it. The object's own version also changes with
// the status.
func Since(policy *networkv1.EgressNetworkPolicy) (version uint64, known bool) {
	asked := &policy.Status.Asked
	version, err := Version(asked.Version)
	return version, err == nil && asked.Generation == policy.Generation
}

// explain adds, for nodes where the object is not in effect, the state of the Node and what to do.
func (c *Client) explain(ctx context.Context, report *Report) {
	if report.All() {
		return
	}
	var nodes corev1.NodeList
	ready := map[string]bool{}
	err := c.objects.List(ctx, &nodes)
	for i := range nodes.Items {
		ready[nodes.Items[i].Name] = Ready(&nodes.Items[i])
	}
	for i := range report.Not {
		node := &report.Not[i]
		isReady, known := ready[node.Name]
		switch {
		case node.Failing:
			node.Next = "correct what the reason names; on that node: weft diff"
		case err == nil && known && !isReady: // without the right to list Nodes, the rest is still reported
			node.Reason = NotReady(node.Reason)
			node.Next = "kubectl describe node " + node.Name
		default:
			node.Next = "weft status; the log of the agent on " + node.Name
		}
	}
}

// Ready reports whether a Node is ready. A Node without this condition counts as ready.
func Ready(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return true
}

// NotReady adds to a reason that the node is not ready in Kubernetes.
func NotReady(reason string) string {
	return "Kubernetes does not find the node ready, so that its agent may be away: " + reason
}
