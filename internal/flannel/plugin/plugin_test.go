package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"weft.dev/weft/internal/attach"
)

const subnetEnv = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.9.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"

// delegateScript is a delegate that notes its commands, and fails while there is a file called fail. At its DEL, prepared records come to
// the node.
const delegateScript = `#!/bin/sh
echo "$CNI_COMMAND" >> "$(dirname "$0")/commands"
[ ! -e "$(dirname "$0")/fail" ] || exit 1
[ "$CNI_COMMAND" != DEL ] || [ ! -e "$(dirname "$0")/prepared" ] || mv "$(dirname "$0")/prepared" "$(dirname "$0")/no-records"
[ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion":"1.0.0"}'
`

// stage is a directory with a delegate, and the plugin's files.
type stage struct {
	t   *testing.T
	dir string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{t, t.TempDir()}
	s.write("bridge", delegateScript, 0o700)
	s.write("subnet.env", subnetEnv, 0o600)
	for name, value := range map[string]string{"PATH": s.dir, "CONTAINERID": "c", "IFNAME": "eth0", "NETNS": "/n"} {
		t.Setenv("CNI_"+name, value)
	}
	return s
}

func (s *stage) write(name, text string, mode os.FileMode) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), mode); err != nil {
		s.t.Fatal(err)
	}
}

// errAgent is the answer of the agent.
var errAgent = errors.New("the agent")

// do executes a verb with a configuration that has more fields, with a comma at the end.
func (s *stage) do(verb func(*plugin, *skel.CmdArgs) error, more string) error {
	conf := fmt.Sprintf(`{"name":"cbr0","type":"flannel","cniVersion":"1.0.0",%s"subnetFile":%q,"dataDir":%q,"records":%q}`, more,
		filepath.Join(s.dir, "subnet.env"), filepath.Join(s.dir, "caches"), filepath.Join(s.dir, "no-records"))
	agent := skel.CNIFuncs{Del: func(*skel.CmdArgs) error { return errAgent }}
	args := &skel.CmdArgs{ContainerID: "c", IfName: "eth0", Netns: "/n", Path: s.dir, StdinData: []byte(conf)}
	return verb(&plugin{stdout: &bytes.Buffer{}, agent: agent}, args)
}

// commands are those that the delegate has had.
func (s *stage) commands() string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "commands"))
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(text)), " ")
}

// TestRepeatedADD: an ADD that fails undoes what it did, unless the interface has been attached before: the pod goes on.
func TestRepeatedADD(t *testing.T) {
	for _, c := range []struct {
		name     string
		attached bool
		want     string
	}{
		{"first ADD", false, "ADD DEL"},
		{"attached before", true, "ADD ADD"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t)
			if c.attached {
				if err := s.do((*plugin).add, ""); err != nil {
					t.Fatal(err)
				}
			}
			s.write("fail", "", 0o600)
			if err := s.do((*plugin).add, ""); err == nil {
				t.Error("ADD succeeded without its delegate")
			}
			if got := s.commands(); got != c.want {
				t.Errorf("the delegate had %s, want %s", got, c.want)
			}
			if err := os.Remove(filepath.Join(s.dir, "fail")); err != nil {
				t.Fatal(err)
			}
			if err := s.do((*plugin).del, ""); err != nil || s.commands() != c.want+" DEL" {
				t.Errorf("DEL: %v; the delegate had %s", err, s.commands())
			}
		})
	}
}

// TestDELWithInvalidDelegate: a DEL does what the ADD's configuration requires, although the present one is refused.
func TestDELWithInvalidDelegate(t *testing.T) {
	for _, more := range []string{
		`"delegate":{"ipam":{}},`, `"delegate":{"name":"x"},`, `"delegate":{"type":7},`, `"ipam":{"type":"a/b"},`, `"ipam":{"routes":1},`,
	} {
		s := newStage(t)
		if err := s.do((*plugin).add, ""); err != nil {
			t.Fatal(err)
		}
		if err := s.do((*plugin).add, more); err == nil {
			t.Errorf("%s: ADD succeeded", more)
		}
		if err := s.do((*plugin).del, more); err != nil || s.commands() != "ADD DEL" {
			t.Errorf("%s: DEL: %v; the delegate had %s", more, err, s.commands())
		}
	}
}

// TestTakenOverDuringDEL: if the agent takes a pod over while its DEL is with the delegate, the agent gets the DEL too.
func TestTakenOverDuringDEL(t *testing.T) {
	s := newStage(t)
	if err := s.do((*plugin).add, ""); err != nil {
		t.Fatal(err)
	}
	store, err := attach.Open(filepath.Join(s.dir, "prepared"))
	if err != nil {
		t.Fatal(err)
	}
	err = store.Put(t.Context(), attach.Record{
		Version: attach.Version, ContainerID: "c", IfName: "eth0", Netns: "/n", Network: "flannel",
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.5.9.2/24")}, HostInterface: "veth1", MTU: 1450,
		MAC: "02:00:00:00:00:09", BootID: "boot", State: attach.Attached, Created: time.Now(),
	})
	if err = errors.Join(err, store.Close()); err != nil {
		t.Fatal(err)
	}
	if err := s.do((*plugin).del, ""); !errors.Is(err, errAgent) || s.commands() != "ADD DEL" {
		t.Errorf("DEL: %v; the delegate had %s", err, s.commands())
	}
}
