// Package stackube holds the definitions of stackube's objects. Clusters with OpenStack's networks apply this folder; it is none below
// deploy/crds, because kubectl wait goes into subfolders. Package crds parses it.
package stackube

import (
	"embed"
	"io/fs"
)

//go:embed *.yaml
var files embed.FS

// Files are the definitions.
func Files() fs.FS { return files }
