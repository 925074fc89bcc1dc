// Package flows says whose the flows of a node's switch are: it joins what the switch holds with the agent's word for each
// cookie. Explain is pure; Read and Whose ask.
package flows

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile"
)

// Report is what a switch holds, and whose it is.
type Report struct {
	// Node is the name of the node; empty where its agent did not say.
	Node string `json:"node,omitempty"`
	// OwnersUnknown says why nobody knows whose the flows are; then Kind is all that is told of their owners.
	OwnersUnknown string `json:"ownersUnknown,omitempty"`
	// Total counts the switch's flows, Unowned those of them that nobody owns.
	Total   int `json:"total"`
	Unowned int `json:"unowned"`
	// Flows are those that were asked for, by table, and within one by priority, the highest first.
	Flows []Flow `json:"flows"`
}

// Flow is one flow of the switch.
type Flow struct {
	Table     uint8  `json:"table"`
	TableName string `json:"tableName"`
	Priority  uint16 `json:"priority"`
	// Match and Actions are as ovs-ofctl prints them.
	Match   string `json:"match"`
	Actions string `json:"actions"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
	// Cookie is the flow's, "0x…"; Kind is what it says by itself of its owner: attachment, service, policyrule; empty: it is not Weft's.
	Cookie string `json:"cookie"`
	Kind   string `json:"kind,omitempty"`
	// Owner is whose the flow is, as the agent and `weft diff` name it; empty: nobody's, or not known.
	Owner string `json:"owner,omitempty"`
	// Objects are the objects that it comes from; none: they have gone. MoreObjects says that there are more of them.
	Objects     []admin.Object `json:"objects,omitempty"`
	MoreObjects bool           `json:"moreObjects,omitempty"`
	// Pod is the pod of this node, namespace/name, of whose address the flow is, where it comes from other objects.
	Pod string `json:"pod,omitempty"`
	// Learned says that the switch made the flow, because another of the same owner told it to.
	Learned bool `json:"learned,omitempty"`
}

// Read dumps the flows of a bridge of the node, whose sockets are in Open vSwitch's run directory.
func Read(ctx context.Context, runDir, bridge string) (dump []openflow.FlowStats, err error) {
	conn, err := openflow.Dial(ctx, filepath.Join(runDir, bridge+".mgmt"), openflow.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // nothing was written
	return conn.FlowStats(ctx)
}

// Whose reads a switch's flows and asks whose they are. A flow may come while the questions are under way, and one may go: what
// the first answer does not explain is asked for once more.
func Whose(ctx context.Context, runDir string, client *admin.Client, filter Filter) (Report, error) {
	query := admin.OwnersQuery{Bridge: filter.Bridge, Policy: filter.Policy}
	before, unknown := ask(ctx, client, query)
	dump, err := Read(ctx, runDir, cmp.Or(filter.Bridge, host.Bridge))
	if err != nil {
		return Report{}, err
	}
	if unknown != nil {
		report := Explain(dump, filter.without())
		report.OwnersUnknown, report.Unowned = unknown.Error(), 0
		report.of(filter.Bridge, nil)
		return report, nil //nolint:nilerr // the report says it
	}
	report := Explain(dump, before.Owners)
	if report.Unowned > 0 {
		after, err := ask(ctx, client, query)
		if err != nil {
			return Report{}, err
		}
		report = Explain(dump, append(after.Owners, before.Owners...))
	}
	report.Node = before.Node
	report.of(filter.Bridge, before.Tables)
	return report, nil
}

// of replaces what is br0's: the tables' names, and what cookies say by themselves.
func (r *Report) of(bridge string, tables map[uint8]string) {
	if bridge == "" || bridge == host.Bridge {
		return
	}
	for i := range r.Flows {
		r.Flows[i].TableName, r.Flows[i].Kind = tables[r.Flows[i].Table], ""
	}
}

// ask asks the agent. One that does not answer takes half of the time that there is: the switch is read all the same.
func ask(ctx context.Context, client *admin.Client, query admin.OwnersQuery) (admin.Owners, error) {
	if deadline, limited := ctx.Deadline(); limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2) //nolint:mnd // half
		defer cancel()
	}
	return client.Owners(ctx, query)
}

// Explain says whose flows are, by their cookies. Of two owners with one cookie, the first counts.
func Explain(dump []openflow.FlowStats, owners []admin.Owner) Report {
	byCookie := make(map[string]*admin.Owner, len(owners))
	for i := range owners {
		if _, known := byCookie[owners[i].Cookie]; !known {
			byCookie[owners[i].Cookie] = &owners[i]
		}
	}
	teachers := map[uint64]uint64{}
	for i := range dump {
		for _, learned := range dump[i].Flow.Actions.LearnedCookies() {
			teachers[learned] = dump[i].Flow.Cookie
		}
	}
	report := Report{Total: len(dump), Flows: make([]Flow, 0, len(dump))}
	for i := range dump {
		f := explained(&dump[i])
		cookie := dump[i].Flow.Cookie
		if teacher, is := teachers[cookie]; is {
			f.Learned, cookie = true, teacher
		}
		if owner := byCookie[hex(cookie)]; owner != nil {
			f.Owner, f.Objects, f.MoreObjects, f.Pod = owner.Owner, owner.Objects, owner.MoreObjects, owner.Pod
		} else {
			report.Unowned++
		}
		report.Flows = append(report.Flows, f)
	}
	slices.SortStableFunc(report.Flows, func(a, b Flow) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Match, b.Match))
	})
	return report
}

func explained(s *openflow.FlowStats) Flow {
	return Flow{
		Table: s.Flow.Table, TableName: pipeline.TableName(s.Flow.Table), Priority: s.Flow.Priority,
		Match: s.Flow.Match.String(), Actions: s.Flow.Actions.String(), Packets: s.Packets, Bytes: s.Bytes,
		Cookie: hex(s.Flow.Cookie), Kind: pipeline.CookieKind(s.Flow.Cookie),
	}
}

func hex(cookie uint64) string { return fmt.Sprintf("%#x", cookie) }

// ownerOf is an owner as it is known without an agent.
func ownerOf(owner string, object admin.Object) admin.Owner {
	return admin.Owner{Cookie: hex(pipeline.Cookie(reconcile.Owner(owner))), Owner: owner, Objects: []admin.Object{object}}
}
