//go:build lab

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
)

// scrape returns the metrics of a node's agent, by name and labels as written.
func scrape(ctx context.Context, n lab.Node) (map[string]float64, error) {
	page, err := probe.AskAgent(ctx, n, "/metrics")
	if err != nil {
		return nil, err
	}
	samples := map[string]float64{}
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		value, err := strconv.ParseFloat(strings.TrimSpace(line[at+1:]), 64)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		samples[line[:at]] = value
	}
	return samples, nil
}

// An agent's metrics follow the events: pods are added and deleted, and flows are changed by hand.
func TestMetrics(t *testing.T) {
	c := cluster(t)
	n := c.Node(1)
	get := func() map[string]float64 {
		t.Helper()
		samples, err := scrape(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		return samples
	}
	const (
		adds     = `weft_cni_request_duration_seconds_count{code="0",command="ADD",network="overlay"}`
		dels     = `weft_cni_request_duration_seconds_count{code="0",command="DEL",network="overlay"}`
		attached = `weft_attachments{network="overlay",state="attached"}`
		inUse    = `weft_addresses_in_use{network="overlay"}`
		inStep   = `weft_engine_in_step{engine="openflow"}`
		missing  = `weft_engine_drift_total{engine="openflow",kind="missing"}`
		stray    = `weft_engine_drift_total{engine="openflow",kind="stray"}`
		podFlows = `weft_openflow_flows{network="overlay",table="pod"}`
	)
	await(t, "pods of earlier tests removed", func(ctx context.Context) error {
		now, err := scrape(ctx, n)
		if err == nil && now[inUse] != now[attached] {
			err = fmt.Errorf("%v addresses in use, %v attachments", now[inUse], now[attached])
		}
		return err
	})
	before := get()
	pod := addPod(t, c, "n1", "measured")
	after := get()
	for _, name := range []string{adds, attached, inUse} {
		if after[name] != before[name]+1 {
			t.Errorf("%s: %v after an ADD, was %v", name, after[name], before[name])
		}
	}
	if after[podFlows] <= before[podFlows] || after[`weft_openflow_flow_mods_total`] <= before[`weft_openflow_flow_mods_total`] {
		t.Error("an ADD adds no flows")
	}
	await(t, "all engines in step", func(ctx context.Context) error { // the database shows the port after the switch has it
		now, err := scrape(ctx, n)
		for _, name := range []string{
			`weft_ready{network="overlay"}`, `weft_engine_in_step{engine="link"}`, `weft_engine_in_step{engine="nft"}`, `weft_engine_in_step{engine="ovsdb"}`, inStep,
		} {
			if err == nil && now[name] != 1 {
				err = fmt.Errorf("%s: %v", name, now[name])
			}
		}
		return err
	})
	if after[`weft_kube_watches`] < 2 || after[`weft_addresses{network="overlay"}`] < 100 || after[`weft_sync_latency_seconds_count{network="overlay"}`] < 1 {
		t.Errorf("watches %v, addresses %v, syncs %v", after[`weft_kube_watches`], after[`weft_addresses{network="overlay"}`], after[`weft_sync_latency_seconds_count{network="overlay"}`])
	}
	delPod(t, pod)
	if now := get(); now[dels] <= after[dels] {
		t.Errorf("%s: %v after a DEL, was %v", dels, now[dels], after[dels])
	}
	await(t, "the address free again", func(ctx context.Context) error {
		if now, err := scrape(ctx, n); err != nil || now[inUse] != before[inUse] {
			return fmt.Errorf("in use %v, %w", now[inUse], err)
		}
		return nil
	})

	at := get()
	mustRun(t, n.Enter("ovs-ofctl", "-O", "OpenFlow15", "add-flow", "br0", "table=70,priority=7,ip,actions=drop"))
	mustRun(t, n.Enter("ovs-ofctl", "-O", "OpenFlow15", "del-flows", "br0", "table=90"))
	await(t, "the damage counted and repaired", func(ctx context.Context) error {
		now, err := scrape(ctx, n)
		if err != nil {
			return err
		}
		if now[stray] < at[stray]+1 || now[missing] < at[missing]+1 || now[inStep] != 1 {
			return fmt.Errorf("stray %v was %v, missing %v was %v, in step %v", now[stray], at[stray], now[missing], at[missing], now[inStep])
		}
		return nil
	})
	if _, err := probe.AskAgent(t.Context(), n, "/readyz/engines"); err != nil {
		t.Error(err)
	}
}
