package cniconf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Configurations of OpenShift SDN, and of CNI versions that Weft's plugin does not support, are reported; others are not.
func TestLeftoverConfigurations(t *testing.T) {
	dir := t.TempDir()
	changes := 0
	l := &Leftovers{Dir: dir, Changed: func() { changes++ }}
	look := func(want ...string) {
		t.Helper()
		if put, err := l.look(); put != "" || err != nil {
			t.Errorf("look: %q, %v", put, err)
		}
		var got []string
		for _, text := range l.All() {
			name, _, _ := strings.Cut(text, ": ")
			got = append(got, filepath.Base(name))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	look()
	for name, text := range map[string]string{
		"80-openshift-network.conf": `{"cniVersion":"0.3.1","name":"openshift-sdn","type":"openshift-sdn"}`,
		"81.conflist":               `{"cniVersion":"0.3.1","name":"x","plugins":[{"type":"tuning"},{"type":"openshift-sdn"}]}`,
		"90-old.conf":               `{"cniVersion":"0.2.0","name":"old","type":"bridge"}`,
		"91-fine.conf":              `{"cniVersion":"0.3.1","name":"fine","type":"bridge"}`,
		"92-none.conf":              `{"name":"fine","type":"bridge"}`,
		"93-broken.conf":            `{"type":`,
		"94-backup.conf.bak":        `{"type":"openshift-sdn"}`,
		Name:                        `{"cniVersion":"0.2.0"}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "dir.conf"), 0o700); err != nil {
		t.Fatal(err)
	}
	look("80-openshift-network.conf", "81.conflist", "90-old.conf")
	look("80-openshift-network.conf", "81.conflist", "90-old.conf")
	if changes != 1 {
		t.Errorf("%d changes were reported, want 1", changes)
	}
	if err := os.Remove(filepath.Join(dir, "81.conflist")); err != nil {
		t.Fatal(err)
	}
	look("80-openshift-network.conf", "90-old.conf")
	if changes != 2 {
		t.Errorf("%d changes were reported, want 2", changes)
	}
}
