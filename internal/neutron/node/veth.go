package node

import (
	"crypto/sha256"
	"encoding/hex"

	"weft.dev/weft/internal/attach"
)

// vethName returns the name of an attachment's host veth. It depends on the attachment alone: the next pod on a port has another one. A
// limited pod's is shorter, because podlink.Preplugged derives further names from it.
func vethName(key attach.Key, limited bool) string {
	sum := sha256.Sum256([]byte(key.String()))
	if limited {
		const digits = 5
		return "wb" + hex.EncodeToString(sum[:digits])
	}
	return "wp" + hex.EncodeToString(sum[:6])
}
