package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"weft.dev/weft/lab/image"
)

// imageCmd writes the image that users install. The lab's nodes run the same image.
func imageCmd() *cobra.Command {
	var output, bin, ref string
	cmd := &cobra.Command{
		Use: "image", Short: "Write Weft's image as an OCI archive, without a container engine", Args: cobra.NoArgs,
		Long: "Writes Weft's image as an OCI archive, which is a docker-archive as well. It holds weft, weft-cni, weft-flannel and weft-provider as\n" +
			"they were built, and nft and Open vSwitch of this machine. The same files make the same archive.",
		Example: "  weft-lab image --output out/weft-image.tar\n" +
			"  skopeo copy oci-archive:out/weft-image.tar docker://registry.example/weft:v1\n" +
			"  ctr -n k8s.io images import out/weft-image.tar     # on a node without a registry",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if bin == "" {
				self, err := os.Executable()
				if err != nil {
					return fmt.Errorf("find the running program: %w", err)
				}
				bin = filepath.Dir(self)
			}
			weft, err := image.Weft(cmd.Context(), runCommand, bin)
			if err != nil {
				return err
			}
			weft.Ref = ref
			sum, err := writeImage(output, weft)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s  %s (%s)\n", sum, output, ref)
			return err
		},
	}
	cmd.Flags().StringVar(&output, "output", "out/weft-image.tar", "the archive to write")
	cmd.Flags().StringVar(&bin, "weft-bin", "", "folder with weft, weft-cni, weft-flannel and weft-provider (default: that of this program)")
	cmd.Flags().StringVar(&ref, "ref", image.Ref, "the image's name and tag")
	return cmd
}

// writeImage writes an archive to path, replacing an existing file, and returns its checksum (SHA-256).
func writeImage(path string, im image.Image) (_ string, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("write the image: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".image-*")
	if err != nil {
		return "", fmt.Errorf("write the image: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	sum := sha256.New()
	if err := errors.Join(image.Write(io.MultiWriter(f, sum), im), f.Chmod(0o644), f.Close()); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), os.Rename(f.Name(), path)
}
