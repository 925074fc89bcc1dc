package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWireguardKey: the key's file is the same as flanneld's, and an existing key stays.
func TestWireguardKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flannel", "wgkey")
	key, err := wireguardKey(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != keyMode {
		t.Errorf("%v %v", info, err)
	}
	if again, err := wireguardKey(path); err != nil || again != key {
		t.Errorf("another key after a restart: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("%v %v", entries, err)
	}
	for _, bad := range []string{"", "AAAA", strings.Repeat("A", 43) + "="} {
		broken := filepath.Join(t.TempDir(), "wgkey")
		if err := os.WriteFile(broken, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := wireguardKey(broken); err == nil || !strings.Contains(err.Error(), broken+" is not a private key") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
