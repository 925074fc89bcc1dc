// Package testwait waits for conditions in tests.
package testwait

import (
	"context"
	"testing"
	"time"
)

// Limits of a wait.
const (
	patience = 20 * time.Second
	interval = 10 * time.Millisecond
)

// Until waits for a condition. It fails the test if the condition does not hold within 20 s.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for !holds() {
		select {
		case <-ctx.Done():
			t.Fatalf("not so: %s", what)
		case <-tick.C:
		}
	}
}
