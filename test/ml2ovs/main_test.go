//go:build lab

// Package ml2ovs tests Weft on an OpenStack whose Neutron has the ML2 driver openvswitch: neutron-openvswitch-agent on every node and
// neutron-l3-agent on one, in one lab with kubelets.
package ml2ovs

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/programs"
	"weft.dev/weft/test/labs"
	"weft.dev/weft/test/probe"
)

// cluster is the lab that the tests share.
var cluster *lab.Cluster

// labName lets an engineer run tests again and again in one lab: weft-lab --name NAME up --runtime kubelet --openstack openvswitch.
var labName = flag.String("ml2ovs.lab", "", "use this lab, which is up, in place of one of the tests' own")

// ownLab is the name of the tests' own lab.
const ownLab = "ml2ovs"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "hold" {
		fmt.Fprintln(os.Stderr, ground.RunHold(os.Args[2]))
		os.Exit(1)
	}
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	if *labName != "" {
		if cluster, err = lab.Open(ctx, *labName); err != nil {
			return 1, err
		}
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("", "weft-ml2ovs-test")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	bin, err := programs.Folder(ctx, "../..", dir)
	if err != nil {
		return 1, err
	}
	if bin, err = filepath.Abs(bin); err != nil {
		return 1, err
	}
	if err := lab.Down(ctx, ownLab, nil); err != nil { // of a killed run
		return 1, err
	}
	before, err := probe.TakeInventory(ownLab)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, down(before)) }()
	cfg := lab.Config{Name: ownLab, Nodes: 2, Runtime: plan.RuntimeKubelet, OpenStack: plan.OpenStackOpenVSwitch, WeftBin: bin}
	cluster, err = lab.Up(ctx, cfg, labs.Print)
	if err != nil {
		return 1, fmt.Errorf("bring the lab up: %w", err)
	}
	return m.Run(), nil
}

// down takes the lab down, and returns an error if anything of it is left: broker, agents and their helpers too.
func down(before probe.Inventory) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := lab.Down(ctx, ownLab, nil); err != nil {
		return fmt.Errorf("take the lab down: %w", err)
	}
	return before.Left()
}
