package kubestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"

	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
)

// Config reads the network configuration. An invalid one is an error, because the administrator has to correct the file; after a first
// valid one, that stays in effect instead.
func (s *Store) Config(ctx context.Context) (netconf.Config, error) {
	config, err := s.readConfig(ctx)
	switch {
	case err == nil:
		s.config, s.configured = config, true
	case s.configured:
		s.options.Log.Warn("network configuration is not valid; the former one stays in effect", "error", err)
	default:
		return netconf.Config{}, err
	}
	return s.config, nil
}

func (s *Store) readConfig(ctx context.Context) (netconf.Config, error) {
	read := s.options.ReadConfig
	if read == nil {
		read = func(context.Context) ([]byte, error) { return os.ReadFile(s.options.ConfigPath) }
	}
	text, err := read(ctx)
	if err != nil {
		return netconf.Config{}, fmt.Errorf("read the network configuration: %w", err)
	}
	config, err := netconf.Parse(text)
	if err != nil {
		return netconf.Config{}, fmt.Errorf("%s: %w", s.options.ConfigPath, err)
	}
	return config, nil
}

// Changed implements the daemon's store.
func (s *Store) Changed(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed := false
	err := s.followConfig(ctx, func(lease.Update) {
		changed = true
		cancel()
	})
	if changed {
		return nil
	}
	return err
}

// followConfig reports a restart when the configuration in the file changes, until ctx ends. It watches the directory: a ConfigMap's files
// are replaced through a symbolic link in it. A configuration from ReadConfig is not followed here.
func (s *Store) followConfig(ctx context.Context, report func(lease.Update)) error {
	if s.options.ReadConfig != nil {
		<-ctx.Done()
		return ctx.Err()
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch the network configuration: %w", err)
	}
	defer watcher.Close() //nolint:errcheck // nothing was written
	if err := watcher.Add(filepath.Dir(s.options.ConfigPath)); err != nil {
		return fmt.Errorf("watch the network configuration: %w", err)
	}
	last := ""
	look := func() {
		config, err := s.readConfig(ctx)
		switch {
		case err != nil && err.Error() != last:
			s.options.Log.Warn("network configuration is not valid; the former one stays in effect", "error", err)
		case err == nil && config != s.config:
			report(lease.Update{Restart: errors.New("the network configuration changed")})
		}
		if last = ""; err != nil {
			last = err.Error()
		}
	}
	look() // changes before the watch began
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case _, open := <-watcher.Events:
			if !open {
				return errors.New("watch the network configuration: events ended")
			}
			look()
		case err := <-watcher.Errors:
			s.options.Log.Debug("watch of the network configuration", "error", err)
			look()
		}
	}
}
