package policy_test

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"weft.dev/weft/internal/policy/oracle"
)

func parse[T any](t testing.TB, text string) *T {
	t.Helper()
	obj := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), obj); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return obj
}

// The cluster of the clauses: a shop with a database and two clients, pods of another tenant, and pods that no longer have an address of
// their own or never had one.
func shop(t testing.TB) oracle.World {
	t.Helper()
	var w oracle.World
	for _, text := range []string{
		`{metadata: {name: shop, labels: {team: shop}}}`, `{metadata: {name: other, labels: {team: other}}}`, `{metadata: {name: bare}}`,
	} {
		w.Namespaces = append(w.Namespaces, parse[corev1.Namespace](t, text))
	}
	for _, text := range []string{
		`{metadata: {namespace: shop, name: db, labels: {role: db}}, status: {phase: Running, podIPs: [{ip: 10.0.0.1}]},
		  spec: {containers: [{name: c, ports: [{name: sql, containerPort: 5432}, {name: dns, containerPort: 53, protocol: UDP}]}]}}`,
		`{metadata: {namespace: shop, name: db2, labels: {role: db}}, status: {phase: Running, podIPs: [{ip: 10.0.0.2}]},
		  spec: {containers: [{name: c, ports: [{name: sql, containerPort: 5433}]}],
		         initContainers: [{name: side, restartPolicy: Always, ports: [{name: metrics, containerPort: 9100}]}, {name: init, ports: [{name: early, containerPort: 9000}]}]}}`,
		`{metadata: {namespace: shop, name: front, labels: {role: frontend}}, status: {phase: Running, podIPs: [{ip: 10.0.0.3}, {ip: 'fd00::3'}]}}`,
		`{metadata: {namespace: shop, name: plain}, status: {phase: Running, podIPs: [{ip: 10.0.0.4}]}}`,
		`{metadata: {namespace: other, name: front, labels: {role: frontend}}, status: {phase: Running, podIPs: [{ip: 10.0.1.1}]}}`,
		`{metadata: {namespace: bare, name: pod, labels: {role: frontend}}, status: {phase: Running, podIPs: [{ip: 10.0.2.1}]}}`,
		`{metadata: {namespace: shop, name: host, labels: {role: db}}, spec: {hostNetwork: true, containers: []}, status: {phase: Running, podIPs: [{ip: 192.0.2.1}]}}`,
		`{metadata: {namespace: shop, name: done, labels: {role: db}}, status: {phase: Succeeded, podIPs: [{ip: 10.0.3.1}]}}`,
		`{metadata: {namespace: shop, name: failed, labels: {role: frontend}}, status: {phase: Failed, podIPs: [{ip: 10.0.3.2}]}}`,
		`{metadata: {namespace: shop, name: leaving, labels: {role: frontend}, deletionTimestamp: "2026-01-01T00:00:00Z"}, status: {phase: Running, podIPs: [{ip: 10.0.0.8}]}}`,
		`{metadata: {namespace: bare, name: next}, status: {phase: Running, podIPs: [{ip: 10.0.3.1}]}}`,
	} {
		w.Pods = append(w.Pods, parse[corev1.Pod](t, text))
	}
	return w
}

// The packets ("source destination protocol/port") test each clause of the API's documentation, and the cases that it leaves open.
var clauses = []struct {
	name     string
	policies []string
	pass     []string
	stop     []string
}{
	{
		name: "without a policy everything passes",
		pass: []string{"10.0.0.3 10.0.0.1 TCP/5432", "10.0.1.1 10.0.0.1 ICMP/0", "203.0.113.9 10.0.0.1 UDP/1", "10.0.0.1 203.0.113.9 SCTP/7"},
	},
	{
		name:     "an empty podSelector selects all pods of the policy's namespace, and of no other",
		policies: []string{`{podSelector: {}}`},
		pass:     []string{"10.0.0.3 10.0.1.1 TCP/80", "10.0.0.3 10.0.2.1 TCP/80"},
		stop:     []string{"10.0.0.3 10.0.0.1 TCP/5432", "10.0.1.1 10.0.0.4 TCP/80", "203.0.113.9 10.0.0.3 UDP/1", "10.0.0.3 10.0.0.1 ICMP/0"},
	},
	{
		name:     "no ingress rules: nothing enters, whatever leaves",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, policyTypes: [Ingress]}`},
		pass:     []string{"10.0.0.1 10.0.0.3 TCP/80", "10.0.0.1 203.0.113.9 TCP/80", "10.0.0.1 10.0.0.4 TCP/80"},
		stop:     []string{"10.0.0.3 10.0.0.1 TCP/5432", "10.0.0.1 10.0.0.2 TCP/80"},
	},
	{
		name:     "an empty list of rules is none",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, ingress: [], policyTypes: [Ingress]}`},
		stop:     []string{"10.0.0.3 10.0.0.1 TCP/5432"},
	},
	{
		name:     "an empty rule allows everything",
		policies: []string{`{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}`},
		pass:     []string{"10.0.0.3 10.0.0.1 TCP/5432", "203.0.113.9 10.0.0.1 UDP/1", "10.0.0.1 203.0.113.9 ICMP/0"},
	},
	{
		name:     "an empty from is the same as none: all sources",
		policies: []string{`{podSelector: {}, ingress: [{from: [], ports: [{port: 5432}]}]}`},
		pass:     []string{"203.0.113.9 10.0.0.1 TCP/5432", "10.0.0.3 10.0.0.1 TCP/5432"},
		stop:     []string{"10.0.0.3 10.0.0.1 TCP/5433", "10.0.0.3 10.0.0.1 UDP/5432", "10.0.0.3 10.0.0.1 ICMP/0"},
	},
	{
		name:     "without policyTypes, ingress is isolated even if there are only egress rules, and egress too",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, egress: [{to: [{podSelector: {}}]}]}`},
		pass:     []string{"10.0.0.1 10.0.0.3 TCP/80"},
		stop:     []string{"10.0.0.3 10.0.0.1 TCP/80", "10.0.0.1 10.0.1.1 TCP/80", "10.0.0.1 203.0.113.9 TCP/80"},
	},
	{
		name:     "without policyTypes and egress rules, egress is free",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, egress: []}`},
		pass:     []string{"10.0.0.1 203.0.113.9 TCP/80"},
		stop:     []string{"10.0.0.3 10.0.0.1 TCP/80"},
	},
	{
		name:     "policyTypes Egress alone: rules of ingress do not count, and nothing leaves",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, policyTypes: [Egress], ingress: [{from: [{podSelector: {}}]}]}`},
		pass:     []string{"203.0.113.9 10.0.0.1 TCP/80"},
		stop:     []string{"10.0.0.1 10.0.0.3 TCP/80", "10.0.0.1 203.0.113.9 TCP/80"},
	},
	{
		name:     "policyTypes Ingress alone: rules of egress do not count",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, policyTypes: [Ingress], egress: [{to: [{podSelector: {}}]}]}`},
		pass:     []string{"10.0.0.1 203.0.113.9 TCP/80"},
		stop:     []string{"10.0.0.3 10.0.0.1 TCP/80"},
	},
	{
		name: "policies add up",
		policies: []string{
			`{podSelector: {}}`, `{podSelector: {matchLabels: {role: db}}, ingress: [{from: [{podSelector: {matchLabels: {role: frontend}}}]}]}`,
			`{podSelector: {matchLabels: {role: db}}, ingress: [{ports: [{port: 9100}]}]}`,
		},
		pass: []string{"10.0.0.3 10.0.0.1 TCP/5432", "203.0.113.9 10.0.0.2 TCP/9100"},
		stop: []string{"203.0.113.9 10.0.0.2 TCP/5432", "10.0.0.1 10.0.0.3 TCP/80", "10.0.0.4 10.0.0.1 TCP/5432"},
	},
	{
		name: "both ends must allow",
		policies: []string{
			`{podSelector: {matchLabels: {role: frontend}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {role: db}}}], ports: [{port: 5432}]}]}`,
			`{podSelector: {matchLabels: {role: db}}, ingress: [{from: [{podSelector: {matchLabels: {role: frontend}}}], ports: [{port: 5432}, {port: 5433}]}]}`,
		},
		pass: []string{"10.0.0.3 10.0.0.1 TCP/5432"},
		stop: []string{"10.0.0.3 10.0.0.1 TCP/5433", "10.0.0.3 10.0.0.4 TCP/5432", "10.0.0.4 10.0.0.1 TCP/5432"},
	},
	{
		name:     "a pod cannot block access to itself",
		policies: []string{`{podSelector: {}, policyTypes: [Ingress, Egress]}`},
		pass:     []string{"10.0.0.1 10.0.0.1 TCP/5432"},
		stop:     []string{"10.0.0.1 10.0.0.2 TCP/5432"},
	},
	{
		name:     "podSelector alone is of the policy's own namespace",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, ingress: [{from: [{podSelector: {matchLabels: {role: frontend}}}]}]}`},
		pass:     []string{"10.0.0.3 10.0.0.1 TCP/5432"},
		stop:     []string{"10.0.1.1 10.0.0.1 TCP/5432", "10.0.2.1 10.0.0.1 TCP/5432", "10.0.0.4 10.0.0.1 TCP/5432"},
	},
	{
		name:     "an empty podSelector is all pods of the own namespace, not the outside",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, ingress: [{from: [{podSelector: {}}]}]}`},
		pass:     []string{"10.0.0.3 10.0.0.1 TCP/5432", "10.0.0.2 10.0.0.1 ICMP/0"},
		stop:     []string{"10.0.1.1 10.0.0.1 TCP/5432", "203.0.113.9 10.0.0.1 TCP/5432"},
	},
	{
		name:     "namespaceSelector alone is all pods of those namespaces",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: other}}}]}]}`},
		pass:     []string{"10.0.1.1 10.0.0.1 TCP/5432"},
		stop:     []string{"10.0.0.3 10.0.0.1 TCP/5432", "10.0.2.1 10.0.0.1 TCP/5432"},
	},
	{
		name:     "an empty namespaceSelector is all pods, never the outside, nor nodes",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, policyTypes: [Ingress, Egress], ingress: [{from: [{namespaceSelector: {}}]}], egress: [{to: [{namespaceSelector: {}}]}]}`},
		pass:     []string{"10.0.0.3 10.0.0.1 TCP/5432", "10.0.1.1 10.0.0.1 TCP/5432", "10.0.2.1 10.0.0.1 TCP/5432", "10.0.0.1 10.0.2.1 TCP/80"},
		stop:     []string{"203.0.113.9 10.0.0.1 TCP/5432", "10.0.0.1 203.0.113.9 TCP/80", "192.0.2.1 10.0.0.1 TCP/5432", "10.0.0.1 192.0.2.1 TCP/80"},
	},
	{
		name:     "both selectors in one peer: these pods in those namespaces",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: team, operator: Exists}]}, podSelector: {matchLabels: {role: frontend}}}]}]}`},
		pass:     []string{"10.0.0.3 10.0.0.1 TCP/5432", "10.0.1.1 10.0.0.1 TCP/5432"},
		stop:     []string{"10.0.2.1 10.0.0.1 TCP/5432", "10.0.0.4 10.0.0.1 TCP/5432"},
	},
	{
		name:     "selectors in two peers: these pods, or those namespaces",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: other}}}, {podSelector: {matchLabels: {role: db}}}]}]}`},
		pass:     []string{"10.0.1.1 10.0.0.1 TCP/5432", "10.0.0.2 10.0.0.1 TCP/5432"},
		stop:     []string{"10.0.0.3 10.0.0.1 TCP/5432"},
	},
	{
		name:     "NotIn and DoesNotExist match what has no such label",
		policies: []string{`{podSelector: {matchExpressions: [{key: role, operator: DoesNotExist}]}, ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: [other, x]}]}}]}]}`},
		pass:     []string{"10.0.0.3 10.0.0.4 TCP/80", "10.0.2.1 10.0.0.4 TCP/80", "10.0.1.1 10.0.0.1 TCP/80"},
		stop:     []string{"10.0.1.1 10.0.0.4 TCP/80"},
	},
	{
		name:     "an IP block without its exceptions",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, ingress: [{from: [{ipBlock: {cidr: 203.0.0.0/8, except: [203.0.113.0/24, 203.0.113.8/30, 203.128.0.0/9]}}]}]}`},
		pass:     []string{"203.0.112.255 10.0.0.1 TCP/80", "203.0.114.0 10.0.0.1 ICMP/0", "203.127.255.255 10.0.0.1 TCP/80"},
		stop:     []string{"203.0.113.9 10.0.0.1 TCP/80", "203.128.0.0 10.0.0.1 TCP/80", "202.255.255.255 10.0.0.1 TCP/80", "10.0.0.3 10.0.0.1 TCP/80"},
	},
	{
		name:     "an exception is one of its own block only",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, ingress: [{from: [{ipBlock: {cidr: 203.0.0.0/8, except: [203.0.113.0/24]}}, {ipBlock: {cidr: 203.0.113.8/29}}]}]}`},
		pass:     []string{"203.0.113.9 10.0.0.1 TCP/80", "203.0.1.1 10.0.0.1 TCP/80"},
		stop:     []string{"203.0.113.7 10.0.0.1 TCP/80", "203.0.113.16 10.0.0.1 TCP/80"},
	},
	{
		name: "an exception forbids nothing that another policy allows",
		policies: []string{
			`{podSelector: {matchLabels: {role: db}}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}]}]}`,
			`{podSelector: {matchLabels: {role: db}}, ingress: [{from: [{podSelector: {matchLabels: {role: frontend}}}]}]}`,
		},
		pass: []string{"10.0.0.3 10.0.0.1 TCP/80", "203.0.113.9 10.0.0.1 TCP/80"},
		stop: []string{"10.0.0.4 10.0.0.1 TCP/80", "10.0.1.1 10.0.0.1 TCP/80"},
	},
	{
		name:     "an IP block has pods and nodes too",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, policyTypes: [Ingress, Egress], ingress: [{from: [{ipBlock: {cidr: 10.0.1.7/24}}, {ipBlock: {cidr: 192.0.2.0/24}}]}], egress: [{to: [{ipBlock: {cidr: 10.0.1.1/32}}]}]}`},
		pass:     []string{"10.0.1.1 10.0.0.1 TCP/80", "192.0.2.1 10.0.0.1 TCP/80", "10.0.0.1 10.0.1.1 TCP/80"},
		stop:     []string{"10.0.2.1 10.0.0.1 TCP/80", "10.0.0.1 10.0.2.1 TCP/80"},
	},
	{
		name:     "a block of one family has nothing of the other",
		policies: []string{`{podSelector: {matchLabels: {role: frontend}}, ingress: [{from: [{ipBlock: {cidr: "2001:db8::/32", except: ["2001:db8:1::/48"]}}]}]}`, `{podSelector: {matchLabels: {role: db}}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}}]}]}`},
		pass:     []string{"2001:db8::1 fd00::3 TCP/80", "203.0.113.9 10.0.0.1 TCP/80"},
		stop:     []string{"203.0.113.9 10.0.0.3 TCP/80", "2001:db8:1::1 fd00::3 TCP/80", "2001:db9::1 fd00::3 TCP/80"},
	},
	{
		name:     "no protocol is TCP, no port is all of the protocol",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, ingress: [{ports: [{}, {protocol: UDP, port: 53}, {protocol: SCTP}]}]}`},
		pass:     []string{"10.0.0.3 10.0.0.1 TCP/0", "10.0.0.3 10.0.0.1 TCP/1", "10.0.0.3 10.0.0.1 TCP/65535", "10.0.0.3 10.0.0.1 UDP/53", "10.0.0.3 10.0.0.1 SCTP/9"},
		stop:     []string{"10.0.0.3 10.0.0.1 UDP/54", "10.0.0.3 10.0.0.1 ICMP/0"},
	},
	{
		name:     "endPort is the last of a range, nothing else, port 0 neither",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, ingress: [{ports: [{port: 1000, endPort: 1003}, {protocol: UDP, port: 65535, endPort: 65535}, {protocol: SCTP, port: 1, endPort: 65535}]}]}`},
		pass:     []string{"10.0.0.3 10.0.0.1 TCP/1000", "10.0.0.3 10.0.0.1 TCP/1003", "10.0.0.3 10.0.0.1 UDP/65535", "10.0.0.3 10.0.0.1 SCTP/1", "10.0.0.3 10.0.0.1 SCTP/65535"},
		stop:     []string{"10.0.0.3 10.0.0.1 TCP/999", "10.0.0.3 10.0.0.1 TCP/1004", "10.0.0.3 10.0.0.1 TCP/0", "10.0.0.3 10.0.0.1 UDP/65534", "10.0.0.3 10.0.0.1 SCTP/0"},
	},
	{
		name:     "a named port is what each selected pod calls so, by its protocol",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, ingress: [{ports: [{port: sql}, {port: dns, protocol: UDP}, {port: metrics}, {port: early}]}]}`},
		pass:     []string{"10.0.0.3 10.0.0.1 TCP/5432", "10.0.0.3 10.0.0.2 TCP/5433", "10.0.0.3 10.0.0.1 UDP/53", "10.0.0.3 10.0.0.2 TCP/9100", "10.0.0.3 10.0.0.2 TCP/9000"},
		stop:     []string{"10.0.0.3 10.0.0.1 TCP/5433", "10.0.0.3 10.0.0.2 TCP/5432", "10.0.0.3 10.0.0.1 TCP/53", "10.0.0.3 10.0.0.2 UDP/53", "10.0.0.3 10.0.0.1 TCP/9100"},
	},
	{
		name:     "a named port that no pod has allows nothing",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, policyTypes: [Ingress, Egress], ingress: [{ports: [{port: missing}]}], egress: [{ports: [{port: sql, protocol: UDP}]}]}`},
		stop:     []string{"10.0.0.3 10.0.0.1 TCP/5432", "10.0.0.1 10.0.0.2 TCP/5433", "10.0.0.1 203.0.113.9 UDP/53"},
	},
	{
		name:     "for egress a named port is the destination pod's",
		policies: []string{`{podSelector: {matchLabels: {role: frontend}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {role: db}}}], ports: [{port: sql}, {port: 80}]}]}`},
		pass:     []string{"10.0.0.3 10.0.0.1 TCP/5432", "10.0.0.3 10.0.0.2 TCP/5433", "10.0.0.3 10.0.0.1 TCP/80"},
		stop:     []string{"10.0.0.3 10.0.0.1 TCP/5433", "10.0.0.3 10.0.0.2 TCP/5432", "10.0.0.3 10.0.0.4 TCP/80", "10.0.0.3 192.0.2.1 TCP/5432"},
	},
	{
		name:     "a named port to all destinations, or to a block, is that of the pods that have it",
		policies: []string{`{podSelector: {matchLabels: {role: frontend}}, policyTypes: [Egress], egress: [{ports: [{port: metrics}]}, {to: [{ipBlock: {cidr: 10.0.0.0/31}}], ports: [{port: sql}]}]}`},
		pass:     []string{"10.0.0.3 10.0.0.2 TCP/9100", "10.0.0.3 10.0.0.1 TCP/5432"},
		stop:     []string{"10.0.0.3 10.0.0.1 TCP/9100", "10.0.0.3 203.0.113.9 TCP/9100", "10.0.0.3 10.0.0.2 TCP/5433", "10.0.0.3 10.0.0.0 TCP/5432"},
	},
	{
		name:     "pods on their node's network are neither selected nor peers",
		policies: []string{`{podSelector: {matchLabels: {role: db}}, policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {}}]}]}`},
		pass:     []string{"203.0.113.9 192.0.2.1 TCP/5432", "192.0.2.1 203.0.113.9 TCP/80"},
		stop:     []string{"192.0.2.1 10.0.0.1 TCP/5432"},
	},
	{
		name:     "pods that have ended have no address: the next to get it is free",
		policies: []string{`{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {}}]}]}`},
		pass:     []string{"203.0.113.9 10.0.3.1 TCP/80", "10.0.3.1 203.0.113.9 TCP/80"},
		stop:     []string{"10.0.3.2 10.0.0.1 TCP/80", "10.0.3.1 10.0.0.1 TCP/80"},
	},
	{
		name:     "pods that terminate count",
		policies: []string{`{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {role: frontend}}}]}]}`},
		pass:     []string{"10.0.0.8 10.0.0.1 TCP/80"},
		stop:     []string{"10.0.0.4 10.0.0.8 TCP/80"},
	},
	{
		name:     "both families of a pod",
		policies: []string{`{podSelector: {matchLabels: {role: frontend}}, ingress: [{from: [{ipBlock: {cidr: "::/0"}}]}]}`},
		pass:     []string{"2001:db8::1 fd00::3 TCP/80"},
		stop:     []string{"203.0.113.9 10.0.0.3 TCP/80"},
	},
}

func TestClauses(t *testing.T) {
	for _, c := range clauses {
		t.Run(c.name, func(t *testing.T) {
			w := shop(t)
			for i, spec := range c.policies {
				np := &networkingv1.NetworkPolicy{Spec: *parse[networkingv1.NetworkPolicySpec](t, spec)}
				np.Namespace, np.Name = "shop", "policy"+strconv.Itoa(i)
				w.Policies = append(w.Policies, np)
			}
			j := newJudge(index(t, w), w)
			check := func(texts []string, want bool) {
				for _, text := range texts {
					p := packet(t, text)
					if got := j.allowed(p); got != want {
						t.Errorf("%s passes by the rules: %t", text, got)
					}
					if got := w.Allowed(p); got != want {
						t.Errorf("%s passes by the oracle: %t", text, got)
					}
				}
			}
			check(c.pass, true)
			check(c.stop, false)
		})
	}
}

func packet(t testing.TB, text string) oracle.Packet {
	t.Helper()
	fields := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == '/' })
	port, err := strconv.ParseUint(fields[3], 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return oracle.Packet{Src: netip.MustParseAddr(fields[0]), Dst: netip.MustParseAddr(fields[1]), Protocol: corev1.Protocol(fields[2]), Port: uint16(port)}
}
