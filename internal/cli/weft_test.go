package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"k8s.io/klog/v2" //nolint:depguard // it is what is led into the log
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"weft.dev/weft/internal/command"
)

// Messages of Kubernetes' libraries go to the program's own log, in its format. The level can be changed while the program runs.
func TestLoggerOfLibraries(t *testing.T) {
	var out bytes.Buffer
	flags := &commonFlags{log: command.Log{Level: "warn", Format: "json"}}
	log, level, err := flags.logger(&out)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(klog.ClearLogger)
	last := func() map[string]any {
		t.Helper()
		line := map[string]any{}
		if text := strings.TrimSpace(out.String()); text != "" {
			if err := json.Unmarshal([]byte(text), &line); err != nil {
				t.Fatalf("%v in %q", err, text)
			}
		}
		out.Reset()
		return line
	}
	klog.ErrorS(errors.New("no route"), "Failed to watch", "type", "*v1.Node")
	klog.Flush()
	if line := last(); line["level"] != "ERROR" || line["msg"] != "Failed to watch" || line["error"] != "no route" || line["library"] != "kubernetes" {
		t.Errorf("of client-go: %v", line)
	}
	ctrllog.Log.Info("quiet")
	log.Info("quiet")
	if line := last(); len(line) != 0 {
		t.Errorf("below the level: %v", line)
	}
	level.Set(slog.LevelInfo)
	ctrllog.Log.Info("message", "name", "x")
	if line := last(); line["msg"] != "message" || line["name"] != "x" {
		t.Errorf("of controller-runtime: %v", line)
	}
	level.Set(slog.LevelDebug)
	log.Debug("own")
	if line := last(); line["level"] != "DEBUG" || line["msg"] != "own" {
		t.Errorf("own: %v", line)
	}
}
