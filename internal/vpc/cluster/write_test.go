package cluster

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan"
)

// A status that only reports is not written while changes wait, and the next plan has it again. The version that this replica wrote is no
// change. After some time, reports are written in any case.
func TestReportsArePostponed(t *testing.T) {
	r := &reconciler{planner: plan.NewPlanner(), written: map[key]version{}, log: slog.New(slog.DiscardHandler)}
	r.news.take() // everything was read
	vpc := &kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "v", ResourceVersion: "5", Finalizers: []string{kubeovn.Finalizer}}}
	subnet := &kubeovn.Subnet{
		ObjectMeta: metav1.ObjectMeta{Name: "s", UID: "s", ResourceVersion: "6", Finalizers: []string{kubeovn.Finalizer}},
		Spec:       kubeovn.SubnetSpec{Vpc: "none", CIDRBlock: "10.0.1.0/24"},
	}
	rule := &kubeovn.IptablesFIPRule{ObjectMeta: metav1.ObjectMeta{Name: "f", UID: "f", ResourceVersion: "7"}, Spec: kubeovn.IptablesFIPRuleSpec{EIP: "none"}}
	for _, object := range []plan.Object{vpc, subnet, rule} {
		r.knows(object)
	}
	statuses := func() (reports []plan.Object) {
		p := r.planner.Plan(metav1.Now())
		all := p.Statuses
		for _, s := range p.SubnetStatus {
			all = append(all, s)
		}
		for _, object := range all {
			if !p.Reports(object) {
				t.Errorf("the status of %s assigns something", object.GetName())
			}
			reports = append(reports, object)
		}
		for _, v := range p.VpcStatus { // its tunnel key
			if p.Reports(v) {
				t.Error("the first status of the Vpc assigns nothing")
			}
		}
		return reports
	}
	write := func() (count int) {
		w := &writer{reconciler: r, versions: map[key]string{}}
		w.reports(statuses(), func(plan.Object) {
			w.mu.Lock()
			defer w.mu.Unlock()
			count++
		})
		return count
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns1", Name: "p", ResourceVersion: "8"}}
	r.news.add(pod, false)
	for range 2 {
		if count := write(); count != 0 {
			t.Errorf("%d reports are written although a change waits", count)
		}
	}
	r.news.take()
	r.changed = time.Now()
	if count := write(); count != 0 {
		t.Errorf("%d reports are written just after a change", count)
	}
	if result, err := r.settle(); err != nil || result.RequeueAfter != reportQuiet {
		t.Errorf("the next round is due after %s, want %s; %v", result.RequeueAfter, reportQuiet, err)
	}
	if result, err := r.settle(errRefused); err != nil || result.RequeueAfter != reportQuiet { // reports on others do not wait for the delay after an error
		t.Errorf("after an error, the next round is due after %s, want %s; %v", result.RequeueAfter, reportQuiet, err)
	}
	r.news.add(pod, false)
	r.postponed = time.Now().Add(-2 * reportDelay)
	if count := write(); count != 2 {
		t.Errorf("after the delay %d reports are written, want those of the Subnet and of the rule", count)
	}
	if result, err := r.settle(); err != nil || result.RequeueAfter != 0 {
		t.Errorf("another round is due after %s, although all is reported; %v", result.RequeueAfter, err)
	}
	if _, err := r.settle(errRefused); !errors.Is(err, errRefused) {
		t.Errorf("without reports, an error becomes %v", err)
	}
	r.changed = time.Time{}
	for _, object := range []plan.Object{subnet, rule} {
		r.planner.Postpone(object)
	}
	r.news.take()
	r.news.add(rule.DeepCopy(), false)
	if count := write(); count != 2 {
		t.Errorf("after the replica's own change %d reports are written, want 2", count)
	}
	r.planner.Postpone(rule)
	newer := rule.DeepCopy()
	newer.ResourceVersion = "9"
	r.news.add(newer, false)
	if count := write(); count != 0 {
		t.Errorf("%d reports are written although the rule has changed", count)
	}
}
