package bridge_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/openflow/openflowtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFakePassesTheSuite(t *testing.T) {
	openflowtest.Run(t, func(*testing.T) openflowtest.Subject {
		fake := bridge.NewFake()
		return openflowtest.Subject{
			Engine: fake, Disturb: disturb(fake), Restart: func(*testing.T) { fake.Restart() },
		}
	})
}

func TestEngineOnTheFakeServerPassesTheSuite(t *testing.T) {
	openflowtest.Run(t, func(t *testing.T) openflowtest.Subject {
		fake, path := serveFake(t)
		return openflowtest.Subject{
			Engine: runEngine(t, path), Disturb: disturb(fake), Restart: func(*testing.T) { fake.Restart() },
		}
	})
}

func disturb(fake *bridge.Fake) func(*testing.T, ...openflow.Mod) {
	return func(t *testing.T, mods ...openflow.Mod) {
		t.Helper()
		if err := fake.Disturb(mods...); err != nil {
			t.Fatal(err)
		}
	}
}

func serveFake(t testing.TB) (*bridge.Fake, string) {
	t.Helper()
	dir := t.TempDir()
	if len(dir) > 80 { // a unix socket's path has room for 107 bytes
		t.Chdir(dir)
		dir = "."
	}
	path := filepath.Join(dir, "./br0.mgmt")
	if dir == "." {
		path = "./br0.mgmt"
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	fake := bridge.NewFake()
	inBackground(t, func(ctx context.Context) error { return fake.Serve(ctx, l) })
	return fake, path
}

func runEngine(t testing.TB, address string) *bridge.Engine {
	t.Helper()
	engine := bridge.NewEngine(bridge.Config{Address: address, RetryMin: 5 * time.Millisecond})
	inBackground(t, engine.Run)
	return engine
}

// inBackground runs a function until the test ends.
func inBackground(t testing.TB, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}
