// Package image makes container images without a registry and without a builder: a docker-archive tar with one layer
// around programs of this machine.
package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
)

// Image says what to make.
type Image struct {
	Ref        string            // such as weft.local/weft:dev
	Entrypoint []string          // may be empty
	Files      map[string]string // path in the image to path on this machine
	Links      map[string]string // path in the image to the target of a symbolic link
}

// directories that every image has; tmp is for everyone.
var directories = []string{"bin", "dev", "etc", "proc", "run", "sys", "tmp", "usr", "var"} //nolint:gochecknoglobals // a constant table

// Write writes the image as a docker-archive, which `ctr images import` reads.
func Write(w io.Writer, im Image) error {
	layer, err := im.layer()
	if err != nil {
		return fmt.Errorf("image %s: %w", im.Ref, err)
	}
	diff := digest(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config":  map[string]any{"Entrypoint": im.Entrypoint, "Env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin:/"}},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + diff}},
		"history": []map[string]string{{"created_by": "weft-lab"}},
	})
	if err != nil {
		return fmt.Errorf("image %s: %w", im.Ref, err)
	}
	manifest, err := json.Marshal([]map[string]any{{
		"Config": digest(config) + ".json", "RepoTags": []string{im.Ref}, "Layers": []string{diff + "/layer.tar"},
	}})
	if err != nil {
		return fmt.Errorf("image %s: %w", im.Ref, err)
	}
	out := tar.NewWriter(w)
	err = errors.Join(
		file(out, diff+"/layer.tar", 0o644, layer), file(out, digest(config)+".json", 0o644, config),
		file(out, "manifest.json", 0o644, manifest), out.Close())
	if err != nil {
		return fmt.Errorf("image %s: %w", im.Ref, err)
	}
	return nil
}

func digest(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// layer is the same for the same files: entries are sorted and carry no times.
func (im Image) layer() ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	made := map[string]bool{}
	for _, d := range directories {
		if err := dir(w, d, made); err != nil {
			return nil, err
		}
	}
	for _, dst := range sorted(im.Files) {
		raw, err := os.ReadFile(im.Files[dst])
		if err != nil {
			return nil, fmt.Errorf("take %s: %w", im.Files[dst], err)
		}
		name := strings.TrimPrefix(dst, "/")
		if err := errors.Join(dir(w, path.Dir(name), made), file(w, name, 0o755, raw)); err != nil {
			return nil, err
		}
	}
	for _, from := range sorted(im.Links) {
		name := strings.TrimPrefix(from, "/")
		err := errors.Join(dir(w, path.Dir(name), made),
			w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: im.Links[from], Mode: 0o777}))
		if err != nil {
			return nil, fmt.Errorf("link %s: %w", from, err)
		}
	}
	passwd := "root:x:0:0:root:/:/bin/sh\nnobody:x:65532:65532:nobody:/:/bin/false\n"
	if err := errors.Join(file(w, "etc/passwd", 0o644, []byte(passwd)), w.Close()); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func sorted(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// dir makes a directory and those above it, once.
func dir(w *tar.Writer, name string, made map[string]bool) error {
	if name == "." || made[name] {
		return nil
	}
	if err := dir(w, path.Dir(name), made); err != nil {
		return err
	}
	made[name] = true
	mode := int64(0o755)
	if name == "tmp" {
		mode = 0o1777
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}); err != nil {
		return fmt.Errorf("add %s: %w", name, err)
	}
	return nil
}

func file(w *tar.Writer, name string, mode int64, raw []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(raw))}); err != nil {
		return fmt.Errorf("add %s: %w", name, err)
	}
	if _, err := w.Write(raw); err != nil {
		return fmt.Errorf("add %s: %w", name, err)
	}
	return nil
}

// Libraries lists the shared libraries and the loader that a program needs, by their paths, as the machine's own loader
// finds them. A static program has none.
func Libraries(ctx context.Context, run func(ctx context.Context, stdin string, argv ...string) (string, error), program string) []string {
	out, err := run(ctx, "", "ldd", program)
	if err != nil {
		return nil // "not a dynamic executable" is an exit status
	}
	return parseLibraries(out)
}

// parseLibraries reads ldd's lines: "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x...)" or "/lib64/ld-linux... (0x...)".
func parseLibraries(text string) []string {
	var libs []string
	for line := range strings.Lines(text) {
		for f := range strings.FieldsSeq(line) {
			if strings.HasPrefix(f, "/") {
				libs = append(libs, f)
			}
		}
	}
	return libs
}
