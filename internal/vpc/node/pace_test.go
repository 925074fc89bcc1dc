package node

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestPace: how long a change waits for others, by when they come after the last step. The clock is synctest's: nothing sleeps.
func TestPace(t *testing.T) {
	const quiet, limit = 20 * time.Millisecond, 150 * time.Millisecond
	for _, c := range []struct {
		name       string
		since      time.Duration // from the last step to the change
		every      time.Duration // between further changes
		want, less time.Duration // it waits at least and less than this
	}{
		{"long after the last step", limit, time.Hour, 0, 1},
		{"soon after the last step", 5 * time.Millisecond, time.Hour, quiet, quiet + 1},
		{"changes go on", 5 * time.Millisecond, quiet / 2, limit - 5*time.Millisecond, limit - 5*time.Millisecond + 1},
		{"shortly before the limit", limit - 1, time.Hour, 1, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				last, wake := time.Now(), make(chan struct{}, 1)
				time.Sleep(c.since)
				began := time.Now()
				go func() {
					for {
						select {
						case <-t.Context().Done():
							return
						case <-time.After(c.every):
							signal(wake)
						}
					}
				}()
				pace{quiet, limit}.gather(t.Context(), last, wake)
				if took := time.Since(began); took < c.want || took >= c.less {
					t.Errorf("it waits %s", took)
				}
			})
		})
	}
}
