package session

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"
)

// refused is the lifetime of a session that is not made.
const refused time.Duration = -1

// attempts is a network with a server that gives each session its lifetime, in turn, and refuses all later attempts.
type attempts struct {
	lifetimes []time.Duration
	made      []time.Time
	all       chan struct{} // closed by the attempt after the last lifetime
}

func (a *attempts) connect(ctx context.Context, _ string, _ *tls.Config) (net.Conn, error) {
	a.made = append(a.made, time.Now())
	if len(a.made) > len(a.lifetimes) {
		close(a.all)
		<-ctx.Done() // until the keeper is closed
		return nil, errors.New("the keeper is closed")
	}
	lifetime := a.lifetimes[len(a.made)-1]
	if lifetime == refused {
		return nil, errors.New("refused")
	}
	near, far := net.Pipe()
	go func() {
		defer func() { _ = far.Close() }()
		var request json.RawMessage
		if json.NewDecoder(far).Decode(&request) != nil {
			return
		}
		if _, err := io.WriteString(far, `{"id": 1, "result": {}, "error": null}`); err == nil {
			pauseFor(context.WithoutCancel(ctx), lifetime)
		}
	}()
	return near, nil
}

// TestPauses runs on a clock that advances only while everything waits, so each time is exact. The bounds of a pause are those of the
// back-off's random factor, 0.5 to 1.5.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const short, long, failures = redialLast, redialLast + time.Millisecond, 20
		a := &attempts{all: make(chan struct{})}
		for range failures {
			a.lifetimes = append(a.lifetimes, 0)
		}
		a.lifetimes = append(a.lifetimes, short, long, refused, 0, long, long)
		k, err := Keep(t.Context(), Config{
			Database: "Shop", Tables: map[string]model.Model{"Item": &item{}}, Endpoints: []string{"unix:/s"}, ProbeInterval: time.Hour,
			connect: a.connect,
		})
		if err != nil {
			t.Fatal(err)
		}
		<-a.all
		k.Close()
		pause := make([]time.Duration, len(a.lifetimes))
		for i, lifetime := range a.lifetimes {
			pause[i] = a.made[i+1].Sub(a.made[i]) - max(lifetime, 0)
		}
		for i, bounds := range map[int][2]time.Duration{
			0:            {redialFirst / 2, redialFirst * 3 / 2},     // the first session ends at once
			1:            {redialFirst * 3 / 4, redialFirst * 9 / 4}, // and the second
			failures - 1: {redialLast / 2, redialLast * 3 / 2},       // the longest pause
			failures:     {redialLast / 2, redialLast * 3 / 2},       // a short session does not end the back-off
			failures + 1: {0, 0},                                     // after a long session
			failures + 2: {redialFirst / 2, redialFirst * 3 / 2},     // and a refused attempt: the back-off starts again
			failures + 3: {redialFirst * 3 / 4, redialFirst * 9 / 4}, // and goes on with a session that ends at once
			failures + 4: {0, 0},                                     // after another long session
			failures + 5: {0, 0},                                     // and the next one
		} {
			if pause[i] < bounds[0] || pause[i] > bounds[1] {
				t.Errorf("pause of %v after session %d of %v, want %v to %v", pause[i], i, a.lifetimes[i], bounds[0], bounds[1])
			}
		}
	})
}
