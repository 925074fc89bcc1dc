// Package flows reports the owners of a switch's flows on a node: it joins the switch's flows with the agent's answer for each cookie.
// Explain is pure; Read and Attribute do I/O.
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
	"weft.dev/weft/internal/openflow/session"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/reconcile"
)

// Report is the flows of a switch with their owners.
type Report struct {
	// Node is the name of the node; empty if its agent did not answer.
	Node string `json:"node,omitempty"`
	// OwnersUnknown is the reason why the owners are unknown; then only Kind is known about them.
	OwnersUnknown string `json:"ownersUnknown,omitempty"`
	// Total counts the switch's flows, Unowned those without an owner.
	Total   int `json:"total"`
	Unowned int `json:"unowned"`
	// Flows are the selected flows, ordered by table and then by priority, the highest first.
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
	// Cookie is the flow's cookie, "0x…". Kind is the owner's kind, which the cookie contains: attachment, service, policyrule; empty: the
	// flow is not Weft's.
	Cookie string `json:"cookie"`
	Kind   string `json:"kind,omitempty"`
	// Owner is the flow's owner, as named by the agent and `weft diff`; empty: none, or unknown.
	Owner string `json:"owner,omitempty"`
	// Objects are the objects that the flow was compiled from; none: they are deleted. MoreObjects says that there are more of them.
	Objects     []admin.Object `json:"objects,omitempty"`
	MoreObjects bool           `json:"moreObjects,omitempty"`
	// Pod is the pod of this node, as namespace/name, that has the flow's address, if the flow was compiled from other objects.
	Pod string `json:"pod,omitempty"`
	// Learned says that the switch added the flow, by a learn action of another flow of the same owner.
	Learned bool `json:"learned,omitempty"`
}

// Read dumps the flows of a bridge of the node. runDir is Open vSwitch's run directory with the sockets.
func Read(ctx context.Context, runDir, bridge string) (dump []openflow.FlowStats, err error) {
	conn, err := session.Dial(ctx, filepath.Join(runDir, bridge+".mgmt"), session.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // nothing was written
	return conn.FlowStats(ctx)
}

// Attribute reads a switch's flows and requests their owners from the agent. Flows may be added or removed between the two requests: for
// flows that the first answer does not explain, it requests once more.
func Attribute(ctx context.Context, runDir string, client *admin.Client, filter Filter) (Report, error) {
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

// of replaces what is specific to br0: the tables' names, and the kinds that cookies contain.
func (r *Report) of(bridge string, tables map[uint8]string) {
	if bridge == "" || bridge == host.Bridge {
		return
	}
	for i := range r.Flows {
		r.Flows[i].TableName, r.Flows[i].Kind = tables[r.Flows[i].Table], ""
	}
}

// ask requests the owners from the agent. An agent that does not answer uses up half of the remaining time, so that the rest is left for
// the switch.
func ask(ctx context.Context, client *admin.Client, query admin.OwnersQuery) (admin.Owners, error) {
	if deadline, limited := ctx.Deadline(); limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2) //nolint:mnd // half
		defer cancel()
	}
	return client.Owners(ctx, query)
}

// Explain assigns owners to flows, by their cookies. If two owners have one cookie, the first counts.
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
		Table: s.Flow.Table, TableName: layout.TableName(s.Flow.Table), Priority: s.Flow.Priority,
		Match: s.Flow.Match.String(), Actions: s.Flow.Actions.String(), Packets: s.Packets, Bytes: s.Bytes,
		Cookie: hex(s.Flow.Cookie), Kind: cookies.Kind(s.Flow.Cookie),
	}
}

func hex(cookie uint64) string { return fmt.Sprintf("%#x", cookie) }

// ownerOf returns an owner that was computed without an agent.
func ownerOf(owner string, object admin.Object) admin.Owner {
	return admin.Owner{Cookie: hex(cookies.Of(reconcile.Owner(owner))), Owner: owner, Objects: []admin.Object{object}}
}
