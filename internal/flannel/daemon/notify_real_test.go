//go:build real

package daemon_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weft.dev/weft/internal/flannel/flanneltest"
)

// TestNotify: a unit of Type=notify has started once the node has its subnet and subnet.env is there, as with flanneld.
func TestNotify(t *testing.T) {
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`)
	n := u.Node()
	path := filepath.Join(n.Dir, "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close() //nolint:errcheck // only read
	n.Start([]string{"NOTIFY_SOCKET=" + path}, binary, "flanneld", "--etcd-endpoints="+etcd.Endpoint, "--subnet-file="+n.SubnetFile(), "--iface=eth0")
	if err := socket.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 100)
	size, err := socket.Read(text)
	if err != nil || string(text[:size]) != "READY=1" {
		t.Fatalf("%q, %v", text[:size], err)
	}
	if _, err := os.Stat(n.SubnetFile()); err != nil {
		t.Error(err)
	}
}
