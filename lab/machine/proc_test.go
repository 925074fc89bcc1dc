package machine

import (
	"os"
	"path/filepath"
	"testing"
)

func TestParseStat(t *testing.T) {
	text := "42 (a) b (c) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1000 1 18446744073709551615"
	s, err := parseStat(42, []byte(text))
	if err != nil || s.Parent != 7 || s.State != 'S' || s.Start != 987654 {
		t.Errorf("parseStat = %+v, %v", s, err)
	}
	for _, bad := range []string{"", "42 (a", "42 (a) S 7", "42 (a) S x" + text[13:]} {
		if _, err := parseStat(42, []byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// A PID alone does not identify a process.
func TestReadPid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	if err := WritePid(path, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	if got := ReadPid(path); got != os.Getpid() {
		t.Errorf("ReadPid = %d", got)
	}
	if err := os.WriteFile(path, []byte(`{"pid":1,"start":12345678901234}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := ReadPid(path); got != 0 {
		t.Errorf("ReadPid of another start time = %d", got)
	}
	for _, text := range []string{"", "garbage", `{"pid":-1}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := ReadPid(path); got != 0 {
			t.Errorf("ReadPid(%q) = %d", text, got)
		}
	}
}

func TestMemberOf(t *testing.T) {
	text := "9:name=systemd:/\n4:memory:/else\n0::/wl-a/n1/kubepods/x\n"
	for group, want := range map[string]bool{"wl-a": true, "wl-a/n1": true, "wl": false, "wl-a/n": false, "wl-a/n11": false, "else": true} {
		if got := memberOf(text, group); got != want {
			t.Errorf("memberOf(%q) = %v", group, got)
		}
	}
}
