//go:build real

package vswitch

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// start runs a daemon until the test ends, or the returned function is called.
func start(t *testing.T, d Daemon) func() {
	t.Helper()
	cmd := exec.Command(d.Argv[0], d.Argv[1:]...)
	cmd.Env = d.Env
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait() //nolint:errcheck // a signal is an error
		}
	}
	t.Cleanup(stop)
	return stop
}

func options(t *testing.T) Options {
	t.Helper()
	dir, err := os.MkdirTemp("", "wtovs") // a socket's path has 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return Options{RunDir: dir, Database: filepath.Join(dir, "db", "conf.db"), Node: "node.example"}
}

// Configuration survives a restart, and a second server is refused while the first one runs.
func TestDatabaseKeepsWhatItHas(t *testing.T) {
	o := options(t)
	vsctl := func(args ...string) string {
		t.Helper()
		out, err := run(t.Context(), append([]string{"ovs-vsctl", "--db=unix:" + o.socket(), "--no-wait", "--timeout=10"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for turn := range 2 {
		server, err := Database(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		stop := start(t, server)
		daemon, err := Switch(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if want := "unix:" + o.socket(); daemon.Argv[1] != want || filepath.Base(daemon.Argv[0]) != "ovs-vswitchd" {
			t.Errorf("the switch is %v", daemon.Argv)
		}
		if id := vsctl("get", "Open_vSwitch", ".", "external_ids:system-id"); strings.Trim(id, `"`) != o.Node {
			t.Errorf("system-id %s, want %s", id, o.Node)
		}
		if turn == 0 {
			vsctl("add-br", "br-kept")
		}
		if have := vsctl("list-br"); have != "br-kept" {
			t.Errorf("turn %d: bridges %q, want br-kept", turn, have)
		}
		if _, err := Database(t.Context(), o); !errors.Is(err, ErrOther) {
			t.Errorf("a second server: %v, want ErrOther", err)
		}
		stop()
	}
}

// A start after one that was killed while it made the database succeeds, and an older schema is converted.
func TestDatabaseAfterAnotherLife(t *testing.T) {
	o := options(t).withDefaults()
	if err := os.MkdirAll(filepath.Dir(o.Database), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.Database+".new", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	schema, err := os.ReadFile(o.Schema)
	if err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(o.RunDir, "old.ovsschema")
	version, err := run(t.Context(), "ovsdb-tool", "schema-version", o.Schema)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(old, []byte(strings.Replace(string(schema), `"`+version+`"`, `"1.0.0"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	past := o
	past.Schema = old
	if _, err := Database(t.Context(), past); err != nil {
		t.Fatal(err)
	}
	if _, err := Database(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if have, err := run(t.Context(), "ovsdb-tool", "db-version", o.Database); err != nil || have != version {
		t.Errorf("the database has schema %s, want %s (%v)", have, version, err)
	}
	if _, err := os.Stat(o.Database + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the half of a database is still there: %v", err)
	}
}

// A database that is empty, damaged or another program's is set aside; a new one is made and served. An unreadable schema is no reason to
// set anything aside.
func TestDamagedDatabase(t *testing.T) {
	other := `{"name": "Other", "version": "1.0.0", "tables": {"T": {"columns": {"c": {"type": "string"}}}}}`
	for name, damage := range map[string]func(t *testing.T, path string){
		"empty": func(t *testing.T, path string) { write(t, path, "") },
		"zeros": func(t *testing.T, path string) { write(t, path, strings.Repeat("\x00", 4096)) },
		"text":  func(t *testing.T, path string) { write(t, path, "no database") },
		"schema cut short": func(t *testing.T, path string) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			write(t, path, string(data[:200]))
		},
		"another program's": func(t *testing.T, path string) {
			schema := path + ".ovsschema"
			write(t, schema, other)
			if _, err := run(t.Context(), "ovsdb-tool", "create", path+".other", schema); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+".other", path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t).withDefaults()
			var reported []string
			o.Report = func(message string) { reported = append(reported, message) }
			if _, err := Database(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			damage(t, o.Database)
			broken := o
			broken.Schema += "-missing"
			if _, err := Database(t.Context(), broken); err == nil && name != "empty" || len(reported) > 0 && name != "empty" {
				t.Errorf("without a schema: %v, reported %q", err, reported)
			}
			if name == "empty" { // it was set aside, and no new one could be made
				damage(t, o.Database)
				reported = nil
			}
			server, err := Database(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			defer start(t, server)()
			if err := await(t.Context(), o.socket()); err != nil {
				t.Fatal(err)
			}
			if out, err := run(t.Context(), "ovs-vsctl", "--db=unix:"+o.socket(), "--no-wait", "--timeout=10", "add-br", "br0"); err != nil {
				t.Errorf("%s: %v", out, err)
			}
			if aside, err := filepath.Glob(o.Database + ".damaged*"); err != nil || len(aside) == 0 || len(reported) != 1 || !strings.Contains(reported[0], o.Database+".damaged") {
				t.Errorf("set aside %q, reported %q, %v", aside, reported, err)
			}
		})
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSwitchNeedsANode(t *testing.T) {
	if _, err := Switch(t.Context(), Options{}); err == nil || !strings.Contains(err.Error(), "node name") {
		t.Errorf("%v", err)
	}
}
