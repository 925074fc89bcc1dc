//go:build real

package kubestore_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/flanneltest"
)

// TestConfigurationChanges: a file that is replaced as kubelet replaces a ConfigMap's takes effect at once, an invalid one changes nothing;
// lost annotations are written again.
func TestConfigurationChanges(t *testing.T) {
	const network = `{"Network":"10.5.0.0/16","Backend":{"Type":%q}}`
	c := newCluster(t, "")
	dir := t.TempDir()
	c.config = filepath.Join(dir, "net-conf.json")
	version := 0
	write := func(text string) { // ..data is a link to a directory, and net-conf.json to ..data/net-conf.json
		t.Helper()
		version++
		name := fmt.Sprintf("..%d", version)
		err := errors.Join(os.Mkdir(filepath.Join(dir, name), 0o700), os.WriteFile(filepath.Join(dir, name, "net-conf.json"), []byte(text), 0o600),
			os.Symlink(name, filepath.Join(dir, "..new")), os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "..data")))
		if err != nil {
			t.Fatal(err)
		}
	}
	write(fmt.Sprintf(network, "vxlan"))
	if err := os.Symlink("..data/net-conf.json", c.config); err != nil {
		t.Fatal(err)
	}
	n1 := c.Node()
	c.create("n1", nil, "10.5.1.0/24")
	p := c.startWeft(n1, "n1")
	n1.Subnet("FLANNEL_SUBNET")

	c.patch("n1", `{"metadata":{"annotations":{"`+prefix+`kube-subnet-manager":null,"`+prefix+`backend-data":null}}}`)
	flanneltest.Eventually(t, "the annotations are written again", func() error {
		if a := c.get("n1").Annotations; a[prefix+"kube-subnet-manager"] != "true" || !strings.Contains(a[prefix+"backend-data"], "VtepMAC") {
			return fmt.Errorf("%v", a)
		}
		return nil
	})

	write(fmt.Sprintf(network, "udp"))
	flanneltest.Eventually(t, "the bad configuration is reported", func() error {
		if !strings.Contains(p.Log(), `udp\" is not supported: use vxlan`) {
			return errors.New(p.Log())
		}
		return nil
	})
	write(`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"ipip"}}`)
	flanneltest.Eventually(t, "a configuration that no node can serve is reported", func() error {
		if !strings.Contains(p.Log(), "ipip carries IPv4 only") {
			return errors.New(p.Log())
		}
		return nil
	})
	shows(t, n1, "ip link", "flannel.1", true)
	write(fmt.Sprintf(network, "host-gw"))
	shows(t, n1, "ip link", "flannel.1", false)
	flanneltest.Eventually(t, "the backend is advertised", func() error {
		if backend := c.get("n1").Annotations[prefix+"backend-type"]; backend != "host-gw" {
			return errors.New(backend)
		}
		return nil
	})
}
