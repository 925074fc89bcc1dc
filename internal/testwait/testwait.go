// Package testwait waits for conditions in tests.
package testwait

import (
	"context"
	"testing"
	"time"
)

// Limits of a wait. Only a wait that fails takes all of patience, which is for a busy machine.
const (
	patience = 2 * time.Minute
	interval = 10 * time.Millisecond
)

// Until waits for a condition. It fails the test if the condition does not hold within two minutes.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	if !comes(patience, holds) {
		t.Fatalf("not so: %s", what)
	}
}

// Eventually repeats an attempt until it succeeds. It fails the test, with the last error, if none succeeds within two minutes.
func Eventually(t testing.TB, what string, attempt func() error) {
	t.Helper()
	Within(t, patience, what, attempt)
}

// Within repeats an attempt until it succeeds. It fails the test, with the last error, if none succeeds within the limit.
func Within(t testing.TB, limit time.Duration, what string, attempt func() error) {
	t.Helper()
	var err error
	if !comes(limit, func() bool { err = attempt(); return err == nil }) {
		t.Fatalf("not within %s: %s: %v", limit, what, err)
	}
}

// comes reports whether a condition holds within a limit.
func comes(limit time.Duration, holds func() bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for !holds() {
		select {
		case <-ctx.Done():
			return holds() // a test that had no processor for long gets a last attempt
		case <-time.After(interval):
		}
	}
	return true
}
