package kubestore

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// TestChanged: a valid configuration that differs from the one in use is reported, also if it was written before; other writes are not.
func TestChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "net-conf.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"host-gw"}}`)
	s := New(Options{ConfigPath: path, Log: slog.New(slog.DiscardHandler)})
	if _, err := s.Config(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Changed(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("without a change: %v", err)
	}
	changed := make(chan error, 1)
	go func() { changed <- s.Changed(t.Context()) }()
	write(`{`)
	write(`{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}`)
	if err := <-changed; err != nil {
		t.Error(err)
	}
	if err := s.Changed(t.Context()); err != nil {
		t.Errorf("changed before: %v", err)
	}
}
