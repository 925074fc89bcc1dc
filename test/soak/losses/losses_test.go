package losses_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
)

// TestJudge: a spared pair that loses more than without a fault, and more than it may in addition, is an error; losses of others are counted.
func TestJudge(t *testing.T) {
	tallies := losses.Tallies{"a": {Sent: 100, Lost: 3}, "b": {Sent: 100}, "c": {Sent: 100, Lost: 50}}
	notC := func(pair string) bool { return pair != "c" }
	for name, c := range map[string]struct {
		rule losses.Rule
		want losses.Loss
		err  string
	}{
		"all":                 {losses.Rule{}, losses.Loss{Sent: 300, Lost: 53}, "a: "},
		"some":                {losses.Rule{Spares: notC}, losses.Loss{Sent: 200, Lost: 3, Others: 50}, "a: "},
		"as without a fault":  {losses.Rule{Spares: notC, Calm: losses.Tallies{"a": {Lost: 3}}}, losses.Loss{Sent: 200, Lost: 3, Others: 50}, ""},
		"less without one":    {losses.Rule{Spares: notC, Calm: losses.Tallies{"a": {Lost: 2}}}, losses.Loss{Sent: 200, Lost: 3, Others: 50}, "0 more may be lost"},
		"with what may":       {losses.Rule{Spares: notC, May: 3}, losses.Loss{Sent: 200, Lost: 3, Others: 50}, ""},
		"more than what may":  {losses.Rule{Spares: notC, Calm: losses.Tallies{}, May: 2}, losses.Loss{Sent: 200, Lost: 3, Others: 50}, "2 more may be lost"},
		"none must be spared": {losses.Rule{Spares: func(string) bool { return false }}, losses.Loss{Others: 53}, ""},
	} {
		got := c.rule.Judge(tallies)
		err := got.Err
		got.Err = nil
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %+v, %v; want %+v, %q", name, got, err, c.want, c.err)
		}
	}
}

// TestNothingLeft: what is left is waited for, and named with its node.
func TestNothingLeft(t *testing.T) {
	var asked atomic.Int32
	census := losses.Census(func(context.Context) (map[string]probe.Counts, error) {
		left := max(0, 3-int(asked.Add(1)))
		return map[string]probe.Counts{"n1": {"links": 5 + left}, "n2": {"links": 5}}, nil
	})
	before := map[string]probe.Counts{"n1": {"links": 5}, "n2": {"links": 5}}
	if err := census.NothingLeft(t.Context(), before, nil); err != nil || asked.Load() < 3 {
		t.Errorf("after %d counts: %v", asked.Load(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := census.NothingLeft(ctx, map[string]probe.Counts{"n1": {"links": 4}}, func(context.Context) error {
		cancel()
		return errors.New("an object is left")
	})
	if err == nil || !strings.Contains(err.Error(), "n1: left over: links: 5, were 4") || !strings.Contains(err.Error(), "an object is left") {
		t.Error(err)
	}
}

// TestCrowd: each pod is added and deleted, and two pods of one network with one address are an error.
func TestCrowd(t *testing.T) {
	var deleted atomic.Int32
	for name, c := range map[string]struct {
		addresses, networks int
		want                string
	}{"each its own": {20, 1, ""}, "one twice": {19, 1, "two pods of network \"0\" have"}, "one in each of two networks": {10, 2, ""}} {
		deleted.Store(0)
		crowd := losses.Crowd{
			Pods: 20, Together: 3,
			Add: func(_ context.Context, i int) (*lab.Pod, error) {
				p := &lab.Pod{}
				p.Namespace = fmt.Sprint(i % c.networks)
				p.IPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i / c.networks % c.addresses)})}
				return p, nil
			},
			Delete:  func(context.Context, *lab.Pod) error { deleted.Add(1); return nil },
			Network: func(p *lab.Pod) string { return p.Namespace },
		}
		count, err := crowd.Run(t.Context())
		if count != 20 || deleted.Load() != 20 || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d pods, %d deleted: %v", name, count, deleted.Load(), err)
		}
	}
}
