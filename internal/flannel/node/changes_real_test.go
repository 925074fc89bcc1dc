//go:build real

package node_test

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"

	"weft.dev/weft/internal/testwait"
)

// TestChangesByHand: what another program changes on the bridge or at a pod's port is restored when the kernel reports it: this agent compares
// nothing without an event. The agent has started after the pods, so that it has programmed nothing itself.
func TestChangesByHand(t *testing.T) {
	s := newStage(t)
	s.watched = true
	h, stop := serveUntil(t, s)
	pod, other := space(t), space(t)
	result, err := add(t, h, "pod", pod)
	if err != nil {
		t.Fatal(err)
	}
	neighbour, err := add(t, h, "other", other)
	if err != nil {
		t.Fatal(err)
	}
	stop()
	serve(t, s)
	port, mac, otherPort := result.Interfaces[1].Name, result.Interfaces[2].Mac, neighbour.Interfaces[1].Name
	run := func(command string) (string, error) {
		var out []byte
		err := s.space.Do(func(ns.NetNS) (err error) {
			args := strings.Fields(command)
			if out, err = exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				err = fmt.Errorf("%s: %w: %s", command, err, out)
			}
			return err
		})
		return string(out), err
	}
	// What differs between equal states: indexes and timers, and what the kernel decides.
	volatile := regexp.MustCompile(`(?m)^\d+: |@[^:\s]+|link-netns\S* \S+|\S+_timer +\S+|(promiscuity|allmulti|fdb_n_learned) \d+|tentative|^(33:33|01:00):.*$|^.*scope link.*$`)
	state := func() (string, error) {
		var all strings.Builder
		for _, question := range []string{
			"ip -d -o link show cni0", "ip -o address show cni0", "ip -d -o link show " + port, "ip -d -o link show " + otherPort, "bridge fdb show br cni0",
			"ip -4 route show",
		} {
			out, err := run(question)
			if err != nil {
				return "", err
			}
			lines := strings.Split(volatile.ReplaceAllString(out, ""), "\n")
			words := make(map[string]int)
			for word := range strings.FieldsSeq(strings.Join(lines, " ")) {
				words[word]++
			}
			fmt.Fprintln(&all, question, words)
		}
		return all.String(), nil
	}
	var before string
	testwait.Eventually(t, "all devices up", func() error {
		if before, err = state(); err == nil && strings.Contains(before, "NO-CARRIER") {
			err = errors.New(before)
		}
		return err
	})
	for _, change := range []string{
		"ip link set cni0 type bridge nf_call_iptables 0 nf_call_ip6tables 0",
		"ip link set cni0 address 02:00:00:00:00:99",
		"ip link set cni0 mtu 1300",
		"ip link set cni0 down",
		"ip link set cni0 promisc on",
		"ip -4 address flush dev cni0",
		"ip link set " + port + " nomaster",
		"bridge link set dev " + port + " learning on flood on",
		"bridge link set dev " + port + " hairpin off",
		"ip link set " + port + " type bridge_slave isolated on",
		"bridge fdb del " + mac + " dev " + port + " master",
		"bridge fdb replace " + mac + " dev " + otherPort + " master static",
		"ip link set " + port + " down",
		"ip link set " + port + " mtu 1300",
		"ip link set " + port + " group 0",
		"ip link del cni0",
	} {
		if _, err := run(change); err != nil {
			t.Fatal(err)
		}
		testwait.Eventually(t, "after "+change, func() error {
			now, err := state()
			if err == nil && now != before {
				err = errors.New(now + "\nwant " + before)
			}
			return err
		})
		for _, subnet := range s.state.Subnets {
			for name, at := range map[string]ns.NetNS{"pod": pod, "other": other} {
				if err := reaches(t, at.Path(), subnet.Addr().Next(), true); err != nil {
					t.Errorf("%s after %s: %v", name, change, err)
				}
			}
		}
	}
}
