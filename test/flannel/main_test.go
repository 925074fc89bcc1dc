//go:build lab

// Package flannel tests the flannel network in whole clusters, beside the original flanneld too.
package flannel

import (
	"os"
	"testing"
	"time"

	"weft.dev/weft/test/labs"
)

// limit bounds a test. Kubernetes' programs are built before.
const limit = 10 * time.Minute

// weftBin is the folder with Weft's programs. TestMain sets it.
var weftBin string //nolint:gochecknoglobals // built once for all tests

func TestMain(m *testing.M) { os.Exit(labs.Run(m, "../..", &weftBin)) }
