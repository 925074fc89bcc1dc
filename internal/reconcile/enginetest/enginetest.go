// Package enginetest brings engines into a state, and compares them with it, in tests.
package enginetest

import (
	"context"

	"weft.dev/weft/internal/reconcile"
)

// T is a test, or one draw of a property.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Converge makes an engine hold the desired state, and checks that nothing is left to do then.
func Converge[K comparable, V reconcile.Value[V]](t T, engine reconcile.Engine[K, V], desired map[K]V) {
	t.Helper()
	ctx := context.Background()
	actual, err := engine.Read(ctx)
	if err != nil {
		t.Fatalf("Read: %v", err)
	}
	if err := engine.Commit(ctx, reconcile.Diff(desired, actual)); err != nil {
		t.Fatalf("Commit: %v", err)
	}
	Settled(t, engine, desired)
}

// Settled checks that an engine holds the desired state, and nothing else.
func Settled[K comparable, V reconcile.Value[V]](t T, engine reconcile.Engine[K, V], desired map[K]V) {
	t.Helper()
	actual, err := engine.Read(context.Background())
	if err != nil {
		t.Fatalf("Read: %v", err)
	}
	change := reconcile.Diff(desired, actual)
	for key, item := range change.Set {
		t.Errorf("want\n  %v\nhave\n  %v", item, actual[key])
	}
	for _, item := range change.Delete {
		t.Errorf("stray %v", item)
	}
}
