// Command chart renders Weft's Helm chart into the one manifest that kubectl applies, deploy/weft.yaml.
package main

import (
	"fmt"
	"io"
	"log"
	"os"

	"weft.dev/weft/tools/chart/render"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: chart CHART MANIFEST")
		os.Exit(2)
	}
	log.SetOutput(io.Discard) // Helm reports the links to folders, which are meant
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func write(chart, manifest string) error {
	text, err := render.Manifest(chart)
	if err != nil {
		return err
	}
	return os.WriteFile(manifest, text, 0o644)
}
