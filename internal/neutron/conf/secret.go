package conf

import "log/slog"

// Secret is a password or a token. However it is printed, logged or encoded, it reads ***; convert it to a string for use.
type Secret string

const hidden = "***"

// String hides the secret from fmt.
func (Secret) String() string { return hidden }

// GoString hides it from %#v.
func (Secret) GoString() string { return hidden }

// MarshalText hides it from encoders.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// LogValue hides it from slog.
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }
