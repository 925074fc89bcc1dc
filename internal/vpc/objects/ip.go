package objects

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxName is the longest name of an object (RFC 1123 subdomain).
const maxName = 253

// IPName returns the name of the IP object of a pod.
func IPName(namespace, pod string) string {
	name := pod + "." + namespace
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	digest := hex.EncodeToString(sum[:8])
	return strings.TrimRight(name[:maxName-len(digest)-1], ".-") + "-" + digest
}
