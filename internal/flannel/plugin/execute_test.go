package plugin

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

const address = `"ips":[{"address":"10.5.9.9/24"}]`

// TestResults: the result of a delegate has its own version, or that of the configuration.
func TestResults(t *testing.T) {
	for _, c := range []struct{ config, output, version string }{
		{`{"cniVersion":"1.0.0"}`, `{"cniVersion":"0.4.0"}`, "0.4.0"},
		{`{"cniVersion":"1.0.0"}`, `{` + address + `}`, "1.0.0"},
		{`{"cniVersion":"1.0.0"}`, `{"cniVersion":"",` + address + `}`, "1.0.0"},
		{`{}`, `{"ip4":{"ip":"10.5.9.9/24"}}`, "0.1.0"},
		{`{"cniVersion":"1.0.0"}`, `null`, "1.0.0"},
		{`{"cniVersion":"1.0.0"}`, `{"cniVersion":"9.0.0"}`, ""},
		{`{"cniVersion":"1.0.0"}`, `{"cniVersion":`, ""},
		{`{"cniVersion":"1.0.0"}`, ``, ""},
		{`{"cniVersion":"1.0.0"}`, `{"cniVersion":1}`, ""},
	} {
		result, err := resultOf([]byte(c.config), []byte(c.output))
		if c.version == "" {
			if err == nil {
				t.Errorf("%s: %s is no result", c.config, c.output)
			}
			continue
		}
		if err != nil || result.Version() != c.version {
			t.Errorf("%s: %s: %v, %v; want version %s", c.config, c.output, result, err, c.version)
		}
	}
}

// TestFailures: a delegate's failure has the code and the texts that it printed, or else what it wrote to its standard error.
func TestFailures(t *testing.T) {
	s := newStage(t)
	for script, want := range map[string]*types.Error{
		`echo '{"code":114,"msg":"no parent","details":"eth7"}'; exit 1`: {Code: 114, Msg: "ADD by delegate bridge: no parent", Details: "eth7"},
		`echo no parent >&2; exit 3`:                                     {Code: types.ErrInternal, Msg: `ADD by delegate bridge: exit status 3: "no parent\n"`},
		`exit 1`:                                                         {Code: types.ErrInternal, Msg: "ADD by delegate bridge: exit status 1, without a message"},
		`echo no parent; exit 1`:                                         {Code: types.ErrInternal, Msg: "no parent"},
		`echo '{"cniVersion":"9.0.0"}'`:                                  {Code: types.ErrInternal, Msg: "9.0.0"},
	} {
		s.write("bridge", "#!/bin/sh\n[ \"$CNI_COMMAND\" = ADD ] || exit 0\n"+script+"\n", 0o700)
		err := s.do((*plugin).add, "")
		failure, is := errors.AsType[*types.Error](err)
		if !is || failure.Code != want.Code || !strings.Contains(failure.Msg, want.Msg) || failure.Details != want.Details {
			t.Errorf("%s: %+v, want %+v", script, err, want)
		}
	}
	s.write("ptp", delegateScript, 0o600) // it cannot be executed
	if err := s.do((*plugin).add, `"delegate":{"type":"ptp"},`); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("a delegate that cannot be executed: %v", err)
	}
	if err := s.do((*plugin).add, `"delegate":{"type":"none"},`); err == nil || !strings.Contains(err.Error(), `no program "none" in CNI_PATH`) {
		t.Errorf("a delegate that does not exist: %v", err)
	}
}

// TestBusy: a delegate that is being written in place is executed once it is complete.
func TestBusy(t *testing.T) {
	s := newStage(t)
	s.write("bridge", "#!/bin/sh\n", 0o700)
	program := filepath.Join(s.dir, "bridge")
	written, err := os.OpenFile(program, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = written.Close() }()
	if err := exec.Command(program).Run(); !errors.Is(err, unix.ETXTBSY) {
		t.Fatalf("a program that is open for writing: %v", err)
	}
	limited, cancel := context.WithTimeout(t.Context(), busyDelay/2)
	defer cancel()
	if _, err := execute(limited, "bridge", s.dir, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it is not waited for: %v", err)
	}
	_ = written.Close()
	if _, err := execute(t.Context(), "bridge", s.dir, nil); err != nil {
		t.Error(err)
	}
}

// TestSpeaks: a delegate gets the verbs of version 1.1.0 only if it reports that version. The first delegates did not have the command
// VERSION.
func TestSpeaks(t *testing.T) {
	s := newStage(t)
	for script, want := range map[string]bool{
		`echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}'`:                       true,
		`echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}'`:                       false,
		`echo '{"code":100,"msg":"unknown CNI_COMMAND: VERSION"}'; exit 1`:                          false,
		`[ "$CNI_NETNS" ] && echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}' || exit 1`: true,
	} {
		s.write("bridge", "#!/bin/sh\n[ \"$CNI_COMMAND\" = VERSION ] || exit 1\n"+script+"\n", 0o700)
		if got, err := speaks(t.Context(), "bridge", s.dir); err != nil || got != want {
			t.Errorf("%s: %t, %v; want %t", script, got, err, want)
		}
	}
	for name, script := range map[string]string{"fails": "#!/bin/sh\nexit 1\n", "silent": "#!/bin/sh\n"} {
		s.write("bridge", script, 0o700)
		_, err := speaks(t.Context(), "bridge", s.dir)
		if failure, is := errors.AsType[*types.Error](err); !is || failure.Code != types.ErrPluginNotAvailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}
