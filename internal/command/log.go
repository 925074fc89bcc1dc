package command

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"
)

// Log are the flags of a program's log.
type Log struct {
	// Level is the least severe level: debug, info, warn or error.
	Level string
	// Format is text or json.
	Format string
}

// DefaultLog returns the log of a program without flags.
func DefaultLog() Log { return Log{Level: "info", Format: "text"} }

// Register adds the flags, with the defaults of [DefaultLog].
func (l *Log) Register(flags *pflag.FlagSet) {
	without := DefaultLog()
	flags.StringVar(&l.Level, "log-level", without.Level, "least severe messages to log: debug, info, warn or error")
	flags.StringVar(&l.Format, "log-format", without.Format, "format of log lines: text or json")
}

// Open returns the log that the flags describe, and its level. A change of the level takes effect at the next log line.
func (l *Log) Open(w io.Writer) (*slog.Logger, *slog.LevelVar, error) {
	level := &slog.LevelVar{}
	if err := level.UnmarshalText([]byte(strings.ToUpper(l.Level))); err != nil {
		return nil, nil, fmt.Errorf("--log-level %q: it is one of debug, info, warn, error", l.Level)
	}
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: oneErrorKey}
	switch l.Format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), level, nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), level, nil
	default:
		return nil, nil, fmt.Errorf("--log-format %q: it is one of text, json", l.Format)
	}
}

// oneErrorKey logs all errors under one key; logr's key is err.
func oneErrorKey(_ []string, attr slog.Attr) slog.Attr {
	if attr.Key == "err" {
		attr.Key = "error"
	}
	return attr
}
