//go:build real

package etcdstore

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
)

// server runs an etcd, and returns its endpoint.
func server(t *testing.T) string {
	t.Helper()
	urls := make([]string, 2)
	for i := range urls {
		listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // binds at once
		if err != nil {
			t.Fatal(err)
		}
		urls[i] = "http://" + listener.Addr().String()
		_ = listener.Close()
	}
	cmd := exec.CommandContext(t.Context(), "etcd", "--data-dir", filepath.Join(t.TempDir(), "etcd"), "--listen-client-urls", urls[0],
		"--advertise-client-urls", urls[0], "--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1],
		"--initial-cluster", "default="+urls[1], "--unsafe-no-fsync=true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	return urls[0]
}

// TestStaleListing: two nodes that have the same listing of leases get different subnets of each family.
func TestStaleListing(t *testing.T) {
	endpoint := server(t)
	open := func() *Store {
		s, err := New(Options{Flags: netconf.EtcdFlags{Endpoints: []string{endpoint}, Prefix: "/coreos.com/network"}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	nodes := []*Store{open(), open()}
	ctx := t.Context()
	if err := nodes[0].again(ctx, "put the configuration", func(ctx context.Context) error {
		_, err := nodes[0].client.Put(ctx, nodes[0].configKey(), `{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.2.0",
			"EnableIPv6":true,"IPv6Network":"2001:db8:42::/48","Backend":{"Type":"host-gw"}}`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for round := range 10 { // each time the nodes choose the same IPv4 subnet at first with a probability of one half
		var wanted, got [2]lease.Lease
		for i, node := range nodes {
			if _, err := node.Config(ctx); err != nil {
				t.Fatal(err)
			}
			wanted[i] = lease.Lease{
				PublicIP: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), PublicIP6: netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i+1)),
				Backend: "host-gw",
			}
			if _, err := node.Former(ctx, wanted[i]); err != nil {
				t.Fatal(err)
			}
		}
		for i, node := range nodes {
			var err error
			if got[i], err = node.Acquire(ctx, wanted[i]); err != nil {
				t.Fatal(err)
			}
			node.options.Former, node.options.Former6 = netip.Prefix{}, netip.Prefix{} // as if it had never run
		}
		if got[0].Subnet.Overlaps(got[1].Subnet) || got[0].Subnet6.Overlaps(got[1].Subnet6) {
			t.Fatalf("round %d: two nodes have %v and %v", round, got[0], got[1])
		}
		if _, err := nodes[0].client.Delete(ctx, nodes[0].subnetsPrefix(), clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSubnetsStay: a node whose lease is gone from etcd gets the same subnets again, also in its first run, which has begun without a
// subnet file. It keeps them with another address, and when the network gets another family. The node's pods have addresses of them.
func TestSubnetsStay(t *testing.T) {
	const dual = `"EnableIPv6":true,"IPv6Network":"2001:db8:42::/48",`
	for name, c := range map[string]struct {
		before      string // in the configuration
		lost, moved bool
	}{"the lease is lost": {dual, true, false}, "IPv6 is added": {"", false, false}, "the address changes": {dual, false, true}} {
		t.Run(name, func(t *testing.T) {
			s, err := New(Options{Flags: netconf.EtcdFlags{Endpoints: []string{server(t)}, Prefix: "/coreos.com/network"}, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			ctx := t.Context()
			wanted := lease.Lease{PublicIP: netip.MustParseAddr("192.0.2.1"), PublicIP6: netip.MustParseAddr("2001:db8::1"), Backend: "host-gw"}
			acquire := func(families string) lease.Lease {
				t.Helper()
				err := s.again(ctx, "put the configuration", func(ctx context.Context) error {
					_, err := s.client.Put(ctx, s.configKey(), `{"Network":"10.5.0.0/16",`+families+`"Backend":{"Type":"host-gw"}}`)
					return err
				})
				if err == nil {
					_, err = s.Config(ctx)
				}
				if err == nil {
					_, err = s.Former(ctx, wanted)
				}
				if err != nil {
					t.Fatal(err)
				}
				got, err := s.Acquire(ctx, wanted)
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			before := acquire(c.before)
			if c.lost {
				if _, err := s.client.Delete(ctx, s.subnetsPrefix(), clientv3.WithPrefix()); err != nil {
					t.Fatal(err)
				}
			}
			if c.moved {
				wanted.PublicIP, wanted.PublicIP6 = netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")
			}
			after := acquire(dual)
			if after.Subnet != before.Subnet || before.Subnet6.IsValid() && after.Subnet6 != before.Subnet6 || !after.Subnet6.IsValid() {
				t.Errorf("the node had %v and %v, and has %v and %v", before.Subnet, before.Subnet6, after.Subnet, after.Subnet6)
			}
		})
	}
}
