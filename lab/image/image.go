// Package image makes container images without a registry or a builder: an archive with one layer of this machine's programs. The archive
// is both an OCI image layout and a docker-archive, so that ctr, podman, docker and skopeo can read it.
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

// Image describes an image.
type Image struct {
	Ref        string            // such as weft.local/weft:dev
	Entrypoint []string          // may be empty
	Files      map[string]string // path in the image to path on this machine
	Links      map[string]string // path in the image to the target of a symbolic link
	Env        []string          // beside PATH
	Labels     map[string]string // may be empty; those of OCI are documented in its image specification
}

// directories are in every image; every user may write to tmp.
var directories = []string{"bin", "dev", "etc", "proc", "run", "sys", "tmp", "usr", "var"} //nolint:gochecknoglobals // a constant table

// Media types of the OCI image specification.
const (
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// descriptor identifies a blob (OCI image specification, descriptor.md).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    map[string]string `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// archive is an image layout being written to a tar.
type archive struct {
	out *tar.Writer
}

// blob adds a blob, and returns its descriptor.
func (a archive) blob(mediaType string, raw []byte) (descriptor, error) {
	sum := digest(raw)
	d := descriptor{MediaType: mediaType, Digest: "sha256:" + sum, Size: len(raw)}
	return d, file(a.out, blobPath(d), 0o644, raw)
}

func (a archive) blobJSON(mediaType string, value any) (descriptor, error) {
	raw, err := json.Marshal(value)
	if err != nil {
		return descriptor{}, fmt.Errorf("encode %s: %w", mediaType, err)
	}
	return a.blob(mediaType, raw)
}

func (a archive) json(name string, value any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return file(a.out, name, 0o644, raw)
}

func blobPath(d descriptor) string {
	return "blobs/sha256/" + strings.TrimPrefix(d.Digest, "sha256:")
}

// Write writes the image's archive. The same files give the same archive, byte by byte.
func Write(w io.Writer, im Image) error {
	if err := im.write(w); err != nil {
		return fmt.Errorf("image %s: %w", im.Ref, err)
	}
	return nil
}

func (im Image) write(w io.Writer) error {
	raw, err := im.layer()
	if err != nil {
		return err
	}
	a := archive{tar.NewWriter(w)}
	layer, err := a.blob(mediaLayer, raw)
	if err != nil {
		return err
	}
	config, err := a.blobJSON(mediaConfig, im.config(layer))
	if err != nil {
		return err
	}
	manifest, err := a.blobJSON(mediaManifest, map[string]any{
		"schemaVersion": 2, "mediaType": mediaManifest, "config": config, "layers": []descriptor{layer}, "annotations": im.Labels,
	})
	if err != nil {
		return err
	}
	manifest.Platform = map[string]string{"architecture": runtime.GOARCH, "os": "linux"}
	_, tag, _ := strings.Cut(path.Base(im.Ref), ":")
	// containerd takes the whole name from its own annotation; others use a reference within the layout.
	manifest.Annotations = map[string]string{"io.containerd.image.name": im.Ref, "org.opencontainers.image.ref.name": tag}
	return errors.Join(
		a.json("index.json", map[string]any{"schemaVersion": 2, "mediaType": mediaIndex, "manifests": []descriptor{manifest}}),
		a.json("oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}),
		a.json("manifest.json", []map[string]any{{
			"Config": blobPath(config), "RepoTags": []string{im.Ref}, "Layers": []string{blobPath(layer)},
		}}),
		a.out.Close())
}

func (im Image) config(layer descriptor) any {
	return map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{
			"Entrypoint": im.Entrypoint, "Labels": im.Labels,
			"Env": append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin:/"}, im.Env...),
		},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{layer.Digest}},
		"history": []map[string]string{{"created_by": "weft-lab"}},
	}
}

func digest(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// layer returns the same bytes for the same files: entries are sorted and have no times.
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
		info, err := os.Stat(im.Files[dst])
		if err != nil {
			return nil, fmt.Errorf("take %s: %w", im.Files[dst], err)
		}
		mode := int64(0o644)
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		name := strings.TrimPrefix(dst, "/")
		if err := errors.Join(dir(w, path.Dir(name), made), file(w, name, mode, raw)); err != nil {
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
	group := "root:x:0:\nnobody:x:65532:\n"
	err := errors.Join(file(w, "etc/group", 0o644, []byte(group)), file(w, "etc/passwd", 0o644, []byte(passwd)), w.Close())
	if err != nil {
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

// Libraries lists the paths of the shared libraries and the loader that a program needs, as found by the machine's loader. A static
// program has none.
func Libraries(ctx context.Context, run func(ctx context.Context, stdin string, argv ...string) (string, error), program string) []string {
	out, err := run(ctx, "", "ldd", program)
	if err != nil {
		return nil // "not a dynamic executable" has a non-zero exit status
	}
	return parseLibraries(out)
}

// parseLibraries parses ldd's lines: "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x...)" or "/lib64/ld-linux... (0x...)".
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
