package kubebuild

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestParseVersion(t *testing.T) {
	for text, want := range map[string][3]string{
		"require k8s.io/kubernetes v1.34.4\n":                   {"v1.34.4", "1", "34"},
		"require (\n\tk8s.io/kubernetes v1.34.4 // indirect\n)": {"v1.34.4", "1", "34"},
		"\tk8s.io/kubernetes v1.36.0-rc.1\n":                    {"v1.36.0-rc.1", "1", "36"},
	} {
		if got, err := parseVersion("go.mod", text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if _, err := parseVersion("go.mod", "replace k8s.io/kubernetes => ../x\n"); !errors.Is(err, ErrVersion) {
		t.Errorf("without a requirement: %v", err)
	}
}

// An interrupted build leaves no file with a program's name, and the next build makes the program.
func TestEnsureKeepsOnlyWhatIsComplete(t *testing.T) {
	cache, module := t.TempDir(), t.TempDir()
	t.Setenv("WEFT_LAB_CACHE", cache)
	if err := os.WriteFile(filepath.Join(module, "go.mod"), []byte("require k8s.io/kubernetes v1.34.4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	errCut := errors.New("interrupted")
	var result error
	built := 0
	c := Config{
		Module: module,
		Step:   func(_ string, f func() error) error { return f() },
		Run: func(_ context.Context, _ string, argv ...string) (string, error) {
			built++
			half := argv[slices.Index(argv, "-o")+1]
			for _, pkg := range argv[slices.Index(argv, "-o")+2:] {
				if err := os.WriteFile(filepath.Join(half, filepath.Base(pkg)), []byte("program"), 0o700); err != nil {
					return "", err
				}
			}
			return "", result
		},
	}
	result = errCut
	if _, err := Ensure(t.Context(), c); !errors.Is(err, errCut) {
		t.Fatalf("Ensure = %v", err)
	}
	bin := filepath.Join(cache, "kubernetes", "v1.34.4")
	if left, _ := os.ReadDir(bin); len(left) > 0 {
		t.Errorf("an interrupted build left %v", left)
	}
	result = nil
	built = 0
	if got, err := Ensure(t.Context(), c); err != nil || got != bin {
		t.Fatalf("Ensure = %s, %v", got, err)
	}
	if built != 1 {
		t.Errorf("%d go commands for the programs of one module", built)
	}
	for _, name := range []string{"kube-apiserver", "kubectl"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			t.Error(err)
		}
	}
	built = 0
	if _, err := Ensure(t.Context(), c); err != nil || built > 0 {
		t.Errorf("built %d again, %v", built, err)
	}
}

// A new version of CoreDNS has its own name, so that a program of an older version is not mistaken for it.
func TestCoreDNSHasItsVersionInItsName(t *testing.T) {
	lab := t.TempDir()
	module := filepath.Join(lab, "kubernetes")
	if _, err := CoreDNS(module); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a module: %v", err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(lab, "coredns"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(lab, "coredns", "go.mod"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("require (\n\tgithub.com/coredns/coredns v1.14.2\n)\n")
	if got, err := CoreDNS(module + "/"); err != nil || got != "coredns-v1.14.2" {
		t.Errorf("CoreDNS = %q, %v", got, err)
	}
	write("require github.com/coredns/caddy v1.1.4\n")
	if _, err := CoreDNS(module); !errors.Is(err, ErrVersion) {
		t.Errorf("without a requirement: %v", err)
	}
}
