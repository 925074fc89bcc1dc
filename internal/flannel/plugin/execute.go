package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"
)

// Delegates are executed as by CNI's library (package invoke). The library itself imports net/http, whose initialisation would take every
// ADD that the agent serves a millisecond.

// find returns the program of a delegate. path is CNI_PATH.
func find(kind, path string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		program := filepath.Join(dir, kind)
		if info, err := os.Stat(program); err == nil && info.Mode().IsRegular() {
			return program, nil
		}
	}
	return "", fmt.Errorf("no program %q in CNI_PATH %q", kind, path)
}

// execute runs a delegate and returns its output. env is added to the environment, in which it replaces variables of the same name.
func execute(ctx context.Context, kind, path string, config []byte, env ...string) ([]byte, error) {
	program, err := find(kind, path)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, program)
		cmd.Env = append(os.Environ(), env...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(config), &stdout, &stderr
		err := cmd.Run()
		switch {
		case err == nil:
			_, _ = stderr.WriteTo(os.Stderr)
			return stdout.Bytes(), nil
		case !errors.Is(err, unix.ETXTBSY) || try == busyTries:
			return nil, failureOf(err, stdout.Bytes(), stderr.Bytes())
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s is being written: %w", program, ctx.Err())
		case <-time.After(busyDelay):
		}
	}
}

// An installer that writes a plugin in place keeps it from being executed meanwhile. No event reports the end of that.
const (
	busyTries = 20
	busyDelay = 250 * time.Millisecond
)

// failureOf returns the error that a failed delegate has printed.
func failureOf(err error, stdout, stderr []byte) error {
	failure := new(types.Error)
	switch {
	case len(stdout) > 0:
		if wrong := json.Unmarshal(stdout, failure); wrong != nil {
			return fmt.Errorf("%w: it printed %q, which is no error of the CNI specification: %w", err, stdout, wrong)
		}
		return failure
	case len(stderr) > 0:
		return fmt.Errorf("%w: %q", err, stderr)
	default:
		return fmt.Errorf("%w, without a message", err)
	}
}

// resultOf parses the output of a delegate's ADD. A result without a version has that of the configuration.
func resultOf(config, output []byte) (types.Result, error) {
	fields := map[string]json.RawMessage{}
	var has struct {
		Version string `json:"cniVersion"`
	}
	err := json.Unmarshal(output, &fields)
	if err == nil {
		err = json.Unmarshal(output, &has)
	}
	if err != nil {
		return nil, fmt.Errorf("its result is not valid: %w", err)
	}
	if has.Version == "" {
		if has.Version, err = new(version.ConfigDecoder).Decode(config); err != nil {
			return nil, err
		}
		if fields == nil { // the output is null
			fields = map[string]json.RawMessage{}
		}
		fields["cniVersion"] = json.RawMessage(`"` + has.Version + `"`)
		if output, err = json.Marshal(fields); err != nil {
			return nil, err
		}
	}
	return create.Create(has.Version, output)
}

// speaks reports whether a delegate supports a verb that version 1.1.0 added. Older delegates answer it in different ways.
func speaks(ctx context.Context, kind, path string) (bool, error) {
	if _, err := find(kind, path); err != nil {
		return false, types.NewError(types.ErrPluginNotAvailable, "delegate "+kind+" cannot be executed", err.Error())
	}
	request := []byte(`{"cniVersion":"` + version.Current() + `"}`)
	// Old delegates require the other variables with any command.
	output, err := execute(ctx, kind, path, request, "CNI_COMMAND=VERSION", "CNI_NETNS=dummy", "CNI_IFNAME=dummy", "CNI_PATH=dummy")
	if err != nil && err.Error() == "unknown CNI_COMMAND: VERSION" { // before version 0.2.0
		return false, nil
	}
	var info version.PluginInfo
	if err == nil {
		info, err = new(version.PluginDecoder).Decode(output)
	}
	if err != nil {
		return false, types.NewError(types.ErrPluginNotAvailable, "delegate "+kind+" does not report its versions", err.Error())
	}
	return slices.Contains(info.SupportedVersions(), "1.1.0"), nil
}
