package status

import (
	"context"
	"reflect"
	"sync"
	"time"
)

// restBetween is how long changes are gathered before the next report: many objects change at once.
const restBetween = 500 * time.Millisecond

// Wait reads reports until one is OK, and returns it. It calls progress with each report whose problems differ from those of the one
// before. A new report is made when an object changes. If ctx ends first, Wait returns the last report and the cause of the end.
func (c *Cluster) Wait(ctx context.Context, progress func(Report)) (Report, error) {
	watching, stop := context.WithCancel(ctx)
	changed, failed := make(chan struct{}, 1), make(chan error, 1)
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	group.Go(func() {
		if err := c.watch(watching, changed); err != nil {
			failed <- err
		}
	})
	var last Report
	for {
		report, err := c.Report(ctx)
		switch {
		case ctx.Err() != nil:
			return last, context.Cause(ctx)
		case err != nil:
			return last, err
		case report.OK:
			return report, nil
		}
		if !reflect.DeepEqual(report.Problems, last.Problems) {
			progress(report)
		}
		last = report
		if err := next(ctx, changed, failed); err != nil {
			return last, err
		}
	}
}

// next waits for a change, and then for restBetween to gather further changes.
func next(ctx context.Context, changed <-chan struct{}, failed <-chan error) error {
	select {
	case <-changed:
	case err := <-failed:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	rested := time.NewTimer(restBetween)
	defer rested.Stop()
	select {
	case <-rested.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
