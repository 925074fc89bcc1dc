// Command chart renders Weft's Helm chart into the manifests that kubectl applies, deploy/weft*.yaml.
package main

import (
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"weft.dev/weft/tools/chart/render"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: chart CHART DIRECTORY")
		os.Exit(2)
	}
	log.SetOutput(io.Discard) // Helm reports the links to folders, which are meant
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func write(chart, dir string) error {
	for _, variant := range render.Variants() {
		text, err := render.Manifest(chart, variant)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, variant.File), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
