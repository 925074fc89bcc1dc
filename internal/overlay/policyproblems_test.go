package overlay

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/transport"
)

// problemReports records reported problems of policies.
type problemReports struct {
	mu   sync.Mutex
	said []string
}

func (p *problemReports) of(key policy.Key, problems []error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said = append(p.said, fmt.Sprintf("%s: %v", key, errors.Join(problems...)))
}

func (p *problemReports) want(t *testing.T, what string, parts ...string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.said) != len(parts) || !slices.EqualFunc(p.said, parts, strings.Contains) {
		t.Errorf("%s: reported: %q, want %q", what, p.said, parts)
	}
	p.said = nil
}

// What a policy specifies and is not enforced is reported once for each change of it, by nodes with a pod that it isolates.
func TestPolicyProblems(t *testing.T) {
	var reports problemReports
	n := newNode(t.TempDir())
	l := n.begin(t)
	t.Cleanup(l.stop)
	l.opts.PolicyProblems = reports.of
	l.policies(t, policyPod("one", web))
	l.policies(t, policyPod("two", web))
	l.update(t, policyView())
	change := func(app string, rule policy.Allow, wrong error) PolicyChange {
		change := denyAll(t)
		change.Problems = map[policy.Key]error{}
		for key, object := range change.Policies {
			selected := &networkingv1.NetworkPolicy{}
			selected.Namespace, selected.Name = key.Namespace, key.Name
			selected.Spec.PodSelector.MatchLabels = map[string]string{"app": app}
			compiled, err := policy.FromNetworkPolicy(selected)
			if err != nil {
				t.Fatal(err)
			}
			object.Pods = compiled.Pods
			object.Sides[policy.Ingress].Allows = append(object.Sides[policy.Ingress].Allows, rule)
			change.Problems[key] = wrong
		}
		return change
	}
	wrong := errors.New("spec.ingress[1]: nonsense")
	l.policies(t, change("web", policy.Allow{}, wrong))
	reports.want(t, "no pod of the policy is on the node")
	l.add(t, l.request("one"))
	reports.want(t, "a pod of the policy is on the node", "default/deny: spec.ingress[1]: nonsense")
	l.add(t, l.request("two"))
	l.policies(t, policyPod("elsewhere", client))
	reports.want(t, "pods are added and removed")
	l.policies(t, change("web", policy.Allow{}, errors.New("spec.ingress[2]: nonsense")))
	reports.want(t, "the policy changes", "spec.ingress[2]")
	l.policies(t, change("other", policy.Allow{}, wrong))
	reports.want(t, "the policy selects other pods")
	l.policies(t, change("web", policy.Allow{}, nil))
	reports.want(t, "the policy is corrected")
	six := policy.Allow{Blocks: []netip.Prefix{netip.MustParsePrefix("fd00::/8")}, AnyService: true}
	l.policies(t, change("web", six, nil))
	reports.want(t, "blocks of IPv6 only", "spec.ingress[1]: all its ipBlocks are of IPv6")
	six.Blocks = append(six.Blocks, netip.MustParsePrefix("10.0.0.0/8"))
	l.policies(t, change("web", six, nil))
	reports.want(t, "one block of IPv4 as well")
	sctp := policy.Allow{AnyPeer: true, Services: []policy.Service{{Protocol: transport.SCTP, Port: 80, Mask: 0xffff}}}
	l.policies(t, change("web", sctp, nil))
	reports.want(t, "SCTP on the userspace datapath", "SCTP")
	l.pods.mu.Lock()
	l.pods.policies.enforcer.TracksSCTP(true)
	l.pods.mu.Unlock()
	if due := l.PolicyProblems(); len(due) > 0 {
		t.Errorf("on a datapath that tracks SCTP, reported: %v", due)
	}
	l.pods.mu.Lock()
	l.pods.policies.enforcer.TracksSCTP(false)
	l.pods.mu.Unlock()
	if due := l.PolicyProblems(); len(due) != 1 {
		t.Errorf("on a datapath that does not track SCTP, reported: %v", due)
	}
	l.policies(t, without("", "deny"))
	if due := l.PolicyProblems(); len(due) > 0 {
		t.Errorf("without policies, there is left %v", due)
	}
}
