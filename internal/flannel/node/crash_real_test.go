//go:build real

package node_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/flannel/node"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/testwait"
)

// planned returns the plan of a pod's attachment, as it is recorded.
func planned(t *testing.T, s *stage, container string, in ns.NetNS) attach.Record {
	t.Helper()
	req := cni.Request{Command: cni.CommandAdd, ContainerID: container, IfName: "eth0", Netns: in.Path(), NetConf: &cni.NetConf{}}
	rec, err := s.network.Plan(t.Context(), &req, placement.Decision{}, attach.InUse{})
	if err != nil {
		t.Fatal(err)
	}
	rec.Version, rec.ContainerID, rec.IfName, rec.Netns, rec.BootID, rec.State = attach.Version, container, "eth0", in.Path(), s.boot, attach.Planned
	return rec
}

// left returns what a node has of an attachment: its link, its elements in the table of ports, and the files for flannel's plugins.
func (s *stage) left(t *testing.T, rec *attach.Record) []string {
	t.Helper()
	var found []string
	err := s.space.Do(func(ns.NetNS) error {
		if _, err := netlink.LinkByName(rec.HostInterface); err == nil {
			found = append(found, "link "+rec.HostInterface)
		} else if !errors.As(err, &netlink.LinkNotFoundError{}) {
			return err
		}
		table, err := exec.Command("nft", "list", "table", "bridge", "weft-flannel-ports").CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft: %w: %s", err, table)
		}
		if strings.Contains(string(table), rec.HostInterface) {
			found = append(found, string(table))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	own := []string{filepath.Join(s.dir, "flannel", rec.ContainerID)}
	for _, address := range rec.Addresses {
		own = append(own, filepath.Join(s.dir, "networks", "cbr0", address.Addr().String()))
	}
	for _, path := range own {
		if content, err := os.ReadFile(path); err == nil && !strings.HasPrefix(string(content), "other") {
			found = append(found, path)
		}
	}
	return found
}

// TestReservedMeanwhile: an address that host-local assigns to another container after it was chosen stays that container's. The pod is
// planned again, and nothing is left of the first plan.
func TestReservedMeanwhile(t *testing.T) {
	s := newStage(t)
	h := serve(t, s)
	pod := space(t)
	rec := planned(t, s, "web", pod)
	taken := filepath.Join(s.dir, "networks", "cbr0", rec.Addresses[1].Addr().String())
	if err := errors.Join(os.MkdirAll(filepath.Dir(taken), 0o700), os.WriteFile(taken, []byte("other\r\neth0"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.network.Connect(t.Context(), &rec); !errors.Is(err, network.ErrPlanAgain) {
		t.Errorf("an address of another container: %v", err)
	}
	if left := s.left(t, &rec); len(left) > 0 {
		t.Errorf("left: %s", left)
	}
	if content, err := os.ReadFile(taken); err != nil || string(content) != "other\r\neth0" {
		t.Errorf("the other container's file: %q, %v", content, err)
	}
	result, err := add(t, h, "web", pod)
	if err != nil {
		t.Fatal(err)
	}
	for _, ip := range result.IPs {
		if ip.Address.IP.String() == rec.Addresses[1].Addr().String() {
			t.Errorf("the pod has the other container's address %s", ip.Address.IP)
		}
	}
}

// TestKilledDuringADD: what an ADD has made when the agent is killed, the next agent removes if the record is planned. If it is attached, the
// agent makes the port, which was being made.
func TestKilledDuringADD(t *testing.T) {
	s := newStage(t)
	h, stop := serveUntil(t, s)
	begun, joining := space(t), space(t)
	for container, pod := range map[string]ns.NetNS{"begun": begun, "joining": joining} {
		if _, err := add(t, h, container, pod); err != nil {
			t.Fatal(err)
		}
	}
	recs := map[string]attach.Record{}
	for _, rec := range h.Records(node.Name).Attached() {
		recs[rec.ContainerID] = rec
	}
	unfinished, complete := recs["begun"], recs["joining"]
	unfinished.State = attach.Planned
	if err := h.Records(node.Name).Put(t.Context(), unfinished); err != nil {
		t.Fatal(err)
	}
	stop()
	files := filepath.Join(s.dir, "networks", "cbr0")
	err := errors.Join( // it was killed before it wrote the second address's file, and the content of the first one's
		os.Truncate(filepath.Join(files, unfinished.Addresses[0].Addr().String()), 0), os.Remove(filepath.Join(files, unfinished.Addresses[1].Addr().String())),
		s.space.Do(func(ns.NetNS) error {
			port, err := netlink.LinkByName(complete.HostInterface)
			return errors.Join(err, netlink.LinkSetNoMaster(port))
		}))
	if err != nil {
		t.Fatal(err)
	}
	serve(t, s)
	for _, subnet := range s.state.Subnets {
		gw := subnet.Addr().Next()
		testwait.Eventually(t, "the pod with a record is connected", func() error { return reaches(t, joining.Path(), gw, true) })
	}
	testwait.Eventually(t, "the unfinished attachment is removed", func() error {
		if left := s.left(t, &unfinished); len(left) > 0 {
			return fmt.Errorf("left: %s", left)
		}
		return nil
	})
	if left := s.left(t, &complete); len(left) != 3+len(complete.Addresses) {
		t.Errorf("of the other attachment the node has only %s", left)
	}
}
