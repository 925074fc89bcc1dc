//go:build tools

// Package flanneld pins the version of flannel's daemon, which tests run beside Weft's.
package flanneld

import _ "github.com/flannel-io/flannel"
