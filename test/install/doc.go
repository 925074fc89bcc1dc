// Package install holds Weft to what those rely on who install it: by the manifest that users have, on real kubelets, from
// the archive that `make image` writes; upgraded under traffic, and taken away again.
package install
