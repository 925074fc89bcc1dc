package controller

import (
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// The lease's timeout belongs to the lease's client alone: as the manager's, it would end all watches each time it passes.
func TestLockLeavesTheConfigurationAsItIs(t *testing.T) {
	config := &rest.Config{Host: "https://127.0.0.1:1"}
	if _, err := newLock(Options{Config: config, LeaseNamespace: "n", LeaseName: "l", identity: "i"}, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if config.Timeout != 0 || config.UserAgent != "" {
		t.Errorf("the configuration of all clients has timeout %s and user agent %q, want none", config.Timeout, config.UserAgent)
	}
}
