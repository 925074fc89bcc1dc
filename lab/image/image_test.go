package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestWriteIsAnArchiveThatNamesWhatItHolds(t *testing.T) {
	program := filepath.Join(t.TempDir(), "p")
	if err := os.WriteFile(program, []byte("program"), 0o700); err != nil {
		t.Fatal(err)
	}
	im := Image{Ref: "weft.local/x:1", Entrypoint: []string{"/usr/lib/x/p"}, Files: map[string]string{"/usr/lib/x/p": program}, Links: map[string]string{"/bin/q": "p"}}
	var one, two bytes.Buffer
	if err := Write(&one, im); err != nil {
		t.Fatal(err)
	}
	if err := Write(&two, im); err != nil || !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Errorf("the same image came out differently (%v)", err)
	}
	parts := read(t, one.Bytes())
	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(parts["manifest.json"], &manifest); err != nil || len(manifest) != 1 {
		t.Fatalf("manifest: %v", err)
	}
	if manifest[0].RepoTags[0] != im.Ref || parts[manifest[0].Config] == nil {
		t.Errorf("manifest names %v", manifest[0])
	}
	layer := read(t, parts[manifest[0].Layers[0]])
	if string(layer["usr/lib/x/p"]) != "program" {
		t.Error("the program is not in the layer")
	}
	for _, want := range []string{"usr/", "usr/lib/", "usr/lib/x/", "tmp/", "bin/q", "etc/passwd"} {
		if _, ok := layer[want]; !ok {
			t.Errorf("no %s in the layer", want)
		}
	}
	if err := Write(io.Discard, Image{Files: map[string]string{"/x": "/does/not/exist"}}); err == nil {
		t.Error("a missing program was accepted")
	}
}

func read(t *testing.T, raw []byte) map[string][]byte {
	t.Helper()
	parts := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(raw)); ; {
		h, err := r.Next()
		if err == io.EOF { //nolint:errorlint // the tar reader's own end
			return parts
		}
		if err != nil {
			t.Fatal(err)
		}
		if parts[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestParseLibraries(t *testing.T) {
	got := parseLibraries("\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n")
	if want := []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"}; !slices.Equal(got, want) {
		t.Errorf("parseLibraries = %v", got)
	}
}
