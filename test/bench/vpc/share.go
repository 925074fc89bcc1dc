package vpc

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/probe"
)

// A round measures sharesOfRound Subnets after warmUp others. The first ones take longer the longer the round before took, since other
// programs have used the processors' caches meanwhile.
const warmUp, sharesOfRound = 5, 45

// quietWithin limits the wait until the programs of the lab have done what the Vpcs of a round caused.
const quietWithin = time.Minute

// Share measures Weft's share of one more Subnet, whose Vpc exists, and ovn-northd's of all Subnets of the round. While Weft makes their
// rows, neither OVN nor kube-apiserver takes processor time from it for what came before: both have processed the Vpcs, and ovn-northd is
// stopped until all rows are there.
func (f *Fleet) Share(ctx context.Context) (measure.Figures, error) {
	vpcs, subnets := make([]client.Object, 0, warmUp+sharesOfRound), make([]client.Object, 0, warmUp+sharesOfRound)
	for range warmUp + sharesOfRound {
		f.round++
		name := fmt.Sprintf("share-%d", f.round)
		vpcs, subnets = append(vpcs, Vpc(name)), append(subnets, Subnet(name))
	}
	if err := f.scene.Create(ctx, vpcs...); err != nil {
		return nil, err
	}
	for _, v := range vpcs {
		if _, err := f.until(ctx, "router "+v.GetName(), has(f, routerTable, v.GetName(), func(r *routerRow) string { return r.Name })); err != nil {
			return nil, err
		}
	}
	if err := f.sync(ctx, "hv"); err != nil {
		return nil, err
	}
	// With 10,000 Pods, kube-apiserver collects its garbage for half a second after the Vpcs were made, on one of the processors.
	if err := stage.AwaitQuiet(ctx, quietWithin); err != nil {
		return nil, err //nolint:wrapcheck // it says what is wrong
	}
	runtime.GC() // otherwise the benchmark's own collection, which takes longer with a larger fleet, may fall between the Subnets
	shares, err := f.withoutNorthd(ctx, subnets)
	if err != nil {
		return nil, err
	}
	goesOn := time.Now()
	if err := f.sync(ctx, "sb"); err != nil {
		return nil, err
	}
	northd := time.Since(goesOn)
	if err := errors.Join(f.scene.delete(ctx, subnets...), f.scene.delete(ctx, vpcs...)); err != nil {
		return nil, err
	}
	for _, object := range append(subnets, vpcs...) {
		if err := f.scene.gone(ctx, object); err != nil {
			return nil, err
		}
	}
	return measure.Figures{Share: measure.Median(shares[warmUp:]), Northd: milliseconds(northd)}, f.sync(ctx, "hv")
}

// withoutNorthd measures Subnets one after the other while ovn-northd is stopped.
func (f *Fleet) withoutNorthd(ctx context.Context, subnets []client.Object) (shares []float64, err error) {
	if err := f.signalNorthd(ctx, syscall.SIGSTOP); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.signalNorthd(context.WithoutCancel(ctx), syscall.SIGCONT)) }()
	events, err := f.watchSubnets(ctx)
	if err != nil {
		return nil, err
	}
	defer events.Stop()
	for _, subnet := range subnets {
		share, err := f.share(ctx, subnet, events)
		if err != nil {
			return nil, err
		}
		shares = append(shares, milliseconds(share))
	}
	return shares, nil
}

func (f *Fleet) signalNorthd(ctx context.Context, signal syscall.Signal) error {
	_, err := probe.Signal(ctx, f.scene.Cluster, northdProgram, signal)
	return err //nolint:wrapcheck // it names the program
}

// watchSubnets follows Subnets from now on.
func (f *Fleet) watchSubnets(ctx context.Context) (watch.Interface, error) {
	var all kubeovn.SubnetList
	if err := f.busy.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("list Subnets: %w", err)
	}
	events, err := f.busy.Watch(ctx, &kubeovn.SubnetList{}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: all.ResourceVersion}})
	if err != nil {
		return nil, fmt.Errorf("watch Subnets: %w", err)
	}
	return events, nil
}

// share creates a Subnet, and returns the time from its event until its switch is there. It then waits for the Subnet's report.
func (f *Fleet) share(ctx context.Context, subnet client.Object, events watch.Interface) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	name := subnet.GetName()
	began := make(chan time.Time, 1)
	reported := make(chan error, 1)
	go func() { reported <- follow(ctx, events, name, began) }()
	if err := f.scene.Create(ctx, subnet); err != nil {
		return 0, err
	}
	at, err := f.until(ctx, "switch "+name, has(f, switchTable, name, func(r *switchRow) string { return r.Name }))
	if err != nil {
		return 0, err
	}
	if err := <-reported; err != nil {
		return 0, err
	}
	return at.Sub(<-began), nil
}

// follow reads events until the Subnet's status says which addresses it has. began gets the time of the first event.
func follow(ctx context.Context, events watch.Interface, name string, began chan<- time.Time) error {
	first := true
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the status of Subnet %s: %w", name, context.Cause(ctx))
		case event, open := <-events.ResultChan():
			now := time.Now()
			if !open {
				return fmt.Errorf("%w before Subnet %s had a status", errWatchEnded, name)
			}
			subnet, ok := event.Object.(*kubeovn.Subnet)
			if !ok || subnet.Name != name {
				continue
			}
			if first {
				began <- now
				first = false
			}
			if subnet.Status.V4AvailableIPs > 0 {
				return nil
			}
		}
	}
}

var errWatchEnded = errors.New("the watch ended")
