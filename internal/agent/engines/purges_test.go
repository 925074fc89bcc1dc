package engines

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"weft.dev/weft/internal/reconcile"
)

func TestPurgesFollowChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		purged, fail := 0, false
		p := newPurges(slog.New(slog.DiscardHandler), func(context.Context) error {
			purged++
			if fail {
				return errors.New("no switch")
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.run(ctx)
		}()
		expect := func(what string, want int) {
			t.Helper()
			synctest.Wait()
			if purged != want {
				t.Errorf("%s: %d purges, want %d", what, purged, want)
			}
		}
		p.after(reconcile.Event{Read: true, Err: errors.New("unreadable")})
		p.after(reconcile.Event{})
		expect("without a change", 0)
		p.after(reconcile.Event{Set: 1})
		expect("a change", 1)
		p.after(reconcile.Event{Set: 1})
		p.after(reconcile.Event{Deleted: 3, Err: errors.New("partly")})
		expect("changes right after", 1)
		time.Sleep(purgesRest)
		expect("after the rest", 2)
		time.Sleep(10 * purgesRest)
		expect("nothing else changed", 2)
		fail = true
		p.after(reconcile.Event{Deleted: 1})
		expect("a purge that fails", 3)
		fail = false
		time.Sleep(purgesRest)
		expect("it is repeated", 4)
		time.Sleep(10 * purgesRest)
		expect("once it succeeded", 4)
		cancel()
		<-ended
	})
}

func TestReleasesThatMistakeFlows(t *testing.T) {
	for version, want := range map[string]bool{
		"": true, "3": true, "3.1": true, "new.est.one": true, "2.13.8": true, "2.17.7": true, "2.17.8": false, "2.17.12.1": false, "3.0.4": true, "3.0.5": false,
		"3.1.0": true, "3.1.2": true, "3.1.3": false, "3.1.3-2+deb": false, "3.2.0": false, "3.7.1": false, "4.0.0": false,
	} {
		if got := mistakesFlows(version); got != want {
			t.Errorf("%q: %v, want %v", version, got, want)
		}
	}
}
