package link

import (
	"strings"
)

// nameMax is IFNAMSIZ-1 of linux/if.h, in bytes.
const nameMax = 15

// ValidateName reports whether name can be a device's name: 1 to 15 bytes, no slash, colon, white space or control character, and neither
// "." nor "..". It is stricter than the kernel, so that a name is safe in a path as well. The error wraps ErrName.
func ValidateName(name string) error {
	if name == "" || len(name) > nameMax {
		return nameError(name, "must have 1 to 15 bytes")
	}
	if name == "." || strings.Contains(name, "..") {
		return nameError(name, "must not contain two dots or be one")
	}
	for _, b := range []byte(name) {
		if b <= ' ' || b >= 0x7f || strings.IndexByte("/:%\"\\", b) >= 0 {
			return nameError(name, "has a character that is not allowed")
		}
	}
	if name == "all" || name == "default" {
		return nameError(name, "is a word of sysctl")
	}
	return nil
}

type invalidNameError struct{ name, problem string }

func nameError(name, problem string) error { return &invalidNameError{name, problem} }
