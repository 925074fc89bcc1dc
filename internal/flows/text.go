package flows

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"weft.dev/weft/internal/admin"
)

// Group is an object's flows.
type Group struct {
	// Object is the object's kind and name: "NetworkPolicy web/allow-api".
	Object string `json:"object"`
	// Flows counts the object's flows, Shared those of them that belong to other objects as well.
	Flows  int `json:"flows"`
	Shared int `json:"shared,omitempty"`
	// Tables are the tables with these flows.
	Tables []uint8 `json:"tables"`
	// Packets and Bytes are the sums of the flows' counters. A packet may match several flows.
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Explanation is a Report grouped by objects.
type Explanation struct {
	Node          string  `json:"node,omitempty"`
	OwnersUnknown string  `json:"ownersUnknown,omitempty"`
	Total         int     `json:"total"`
	Unowned       int     `json:"unowned"`
	Objects       []Group `json:"objects"`
}

// unowned is shown in the owner's column for flows without an owner.
const unowned = "no owner"

// ByObject groups a report's flows by the objects that they were compiled from. A flow of several objects counts for each.
func (r *Report) ByObject() Explanation {
	groups := map[string]*Group{}
	for i := range r.Flows {
		f := &r.Flows[i]
		names := f.names(r.OwnersUnknown != "")
		for _, name := range names {
			g := groups[name]
			if g == nil {
				g = &Group{Object: name}
				groups[name] = g
			}
			g.Flows++
			if len(names) > 1 {
				g.Shared++
			}
			if !slices.Contains(g.Tables, f.Table) {
				g.Tables = append(g.Tables, f.Table)
			}
			g.Packets, g.Bytes = g.Packets+f.Packets, g.Bytes+f.Bytes
		}
	}
	e := Explanation{Node: r.Node, OwnersUnknown: r.OwnersUnknown, Total: r.Total, Unowned: r.Unowned, Objects: []Group{}}
	for _, name := range slices.SortedFunc(maps.Keys(groups), unownedLast) {
		slices.Sort(groups[name].Tables)
		e.Objects = append(e.Objects, *groups[name])
	}
	return e
}

// unownedLast orders objects by kind and name, with the flows without an owner at the end.
func unownedLast(a, b string) int {
	last := func(name string) int {
		if name == unowned {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(last(a), last(b)), cmp.Compare(a, b))
}

// names returns kind and name of the objects that a flow was compiled from.
func (f *Flow) names(unknown bool) []string {
	switch {
	case len(f.Objects) > 0:
		var names []string
		for _, o := range f.Objects {
			names = append(names, o.String())
		}
		if f.MoreObjects {
			names = append(names, "further "+plural(f.Objects[0].Kind)+" (ask for one by --policy)")
		}
		return names
	case f.Owner != "":
		return []string{f.Owner + ", which has gone"}
	case unknown && f.Kind != "":
		return []string{kindWords(f.Kind) + " (which, only the agent knows)"}
	}
	return []string{unowned}
}

// plural returns the plural of a kind of policies.
func plural(kind string) string {
	if kind == "NetworkPolicy" {
		return "NetworkPolicies"
	}
	return kind + "s"
}

// kindWords describes a cookie's kind.
func kindWords(kind string) string {
	switch kind {
	case "attachment":
		return "pods"
	case "hostsubnet":
		return "HostSubnets"
	case "service", "affinity":
		return "Services"
	case "egressfirewall":
		return "EgressNetworkPolicies"
	case "egressip":
		return "NetNamespaces with egress addresses"
	case "multicast":
		return "NetNamespaces with multicast"
	case "policyrule", "policyterm":
		return "NetworkPolicies"
	}
	return kind
}

// Text writes an explanation as a table, one object per line.
func (e *Explanation) Text(w io.Writer) error {
	var b strings.Builder
	for i := range e.Objects {
		g := &e.Objects[i]
		fmt.Fprintf(&b, "%s: %s in %s", g.Object, count(g.Flows, "flow"), tables(g.Tables))
		if g.Shared > 0 {
			fmt.Fprintf(&b, ", %d of them with others", g.Shared)
		}
		fmt.Fprintf(&b, "; %s, %s\n", count(int(min(g.Packets, 1<<62)), "packet"), count(int(min(g.Bytes, 1<<62)), "byte")) //nolint:gosec // bounded
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

func tables(numbers []uint8) string {
	words := make([]string, 0, len(numbers))
	for _, n := range numbers {
		words = append(words, strconv.Itoa(int(n)))
	}
	if len(words) == 1 {
		return "table " + words[0]
	}
	return "tables " + strings.Join(words, ", ")
}

// Text writes a report as a table, one flow per line.
func (r *Report) Text(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "TABLE\tPRIORITY\tPACKETS\tBYTES\tOWNER\tMATCH\tACTIONS") // Flush returns the error
	for i := range r.Flows {
		f := &r.Flows[i]
		match := f.Match
		if match == "" {
			match = "(all)"
		}
		_, _ = fmt.Fprintf(table, "%d %s\t%d\t%d\t%d\t%s\t%s\t%s\n",
			f.Table, f.TableName, f.Priority, f.Packets, f.Bytes, f.owner(r.OwnersUnknown != ""), match, f.Actions)
	}
	return table.Flush()
}

// owner returns the flow's owner for the table.
func (f *Flow) owner(unknown bool) string {
	const few = 2
	names := f.names(unknown)
	if len(names) > few || f.MoreObjects {
		more := strconv.Itoa(len(names) - few)
		if f.MoreObjects {
			more = "many"
		}
		names = append(slices.Clone(names[:min(few, len(names))]), "and "+more+" more")
	}
	text := strings.Join(names, ", ")
	if f.Pod != "" && !slices.Contains(f.Objects, podObject(f.Pod)) {
		text += " (for pod " + f.Pod + ")"
	}
	if f.Learned {
		text += " (learned)"
	}
	return text
}

func podObject(name string) admin.Object {
	namespace, pod, _ := strings.Cut(name, "/")
	return admin.Object{Kind: "Pod", Namespace: namespace, Name: pod}
}
