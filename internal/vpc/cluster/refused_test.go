package cluster

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/vpc/cluster/plan"
	"weft.dev/weft/internal/vpc/northbound"
)

// If a row of a Subnet is refused, the plan's condition Ready=True is not written, and the next plan has Ready=False; once the row is
// written, it has Ready=True again. The Subnet's finalizer waits too.
func TestRefusedRows(t *testing.T) {
	database := ovn.NewDatabase()
	engine := ovn.NewFake(database)
	if err := engine.Lead(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	r := &reconciler{
		planner: plan.NewPlanner(), written: map[key]version{}, log: slog.New(slog.DiscardHandler),
		loop: reconcile.NewLoop[ovn.Key, ovn.Row](engine, reconcile.Options[ovn.Key, ovn.Row]{}),
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = r.loop.Run(ctx) }() // it ends with ctx only
	foreign := ovn.UUID(ovn.Switch, "foreign")
	taken := ovn.UUID(ovn.SwitchPort, "foreign")
	database.Replace(map[ovn.Key]ovn.Row{
		foreign: {Text: map[string]string{"name": "foreign"}},
		taken:   {Parent: foreign, Text: map[string]string{"name": northbound.PortName("s", netip.MustParseAddr("10.0.1.2"))}},
	})
	r.knows(&kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "v", Finalizers: []string{kubeovn.Finalizer}}})
	r.knows(&kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s", UID: "s"}, Spec: kubeovn.SubnetSpec{Vpc: "v", CIDRBlock: "10.0.1.0/24"}})
	program := func() (bool, *plan.Plan) {
		p := r.planner.Plan(metav1.Now())
		again, err := r.program(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		return again, p
	}
	if again, p := program(); !again || len(p.SubnetStatus) > 0 || len(p.Subnets) > 0 || len(p.VpcStatus) != 1 {
		t.Errorf("a row was refused: again %t, statuses %v, finalizers %v, of Vpcs %v", again, p.SubnetStatus, p.Subnets, p.VpcStatus)
	}
	again, p := program()
	if again || len(p.SubnetStatus) != 1 || p.SubnetStatus[0].Status.Conditions[0].Reason != kubeovn.ReasonRefused {
		t.Fatalf("the plan that reports it: again %t, %+v", again, p.SubnetStatus)
	}
	r.knows(p.SubnetStatus[0])
	database.Replace(nil)
	if err := engine.Lead(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	r.loop.Resync()
	if again, p = program(); !again || len(p.SubnetStatus) > 0 {
		t.Errorf("the rows are written: again %t, statuses %v", again, p.SubnetStatus)
	}
	again, p = program()
	if again || len(p.SubnetStatus) != 1 || p.SubnetStatus[0].Status.Conditions[0].Reason != kubeovn.ReasonReady || len(p.Subnets) != 1 {
		t.Errorf("the last plan: again %t, statuses %+v, finalizers %v", again, p.SubnetStatus, p.Subnets)
	}
}
