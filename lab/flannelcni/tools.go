//go:build tools

// Package flannelcni pins the version of flannel's CNI plugin, which tests run beside Weft's.
package flannelcni

import _ "github.com/containernetworking/plugins/plugins/meta/flannel"
