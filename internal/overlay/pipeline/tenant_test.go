package pipeline_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/goldentest"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
)

// tenantSample is the sample with projects: pods a and b of two, c of b's while it moves to another, and d of a global one.
func tenantSample(conntrack bool) (*pipeline.Config, []pipeline.Pod) {
	c := sample(conntrack)
	c.Mode = pipeline.ModeMultitenant
	return c, []pipeline.Pod{
		{Owner: "attachment/a/eth0", OFPort: 3, Addrs: addrs("10.128.0.5"), VNID: 42},
		{Owner: "attachment/b/eth0", OFPort: 4, Addrs: addrs("10.128.0.6"), VNID: 77},
		{Owner: "attachment/c/eth0", OFPort: 5, Addrs: addrs("10.128.0.7"), VNID: 77, Admits: []uint32{77, 1<<24 - 1}},
		{Owner: "attachment/d/eth0", OFPort: 6, Addrs: addrs("10.128.0.8")},
	}
}

func tenantSections(c *pipeline.Config, pods []pipeline.Pod) []section {
	all := []section{{"cluster", c.StaticRules()}}
	for _, pod := range pods {
		all = append(all, section{string(pod.Owner), c.PodRules(pod)})
	}
	return append(all, section{string(remote.Owner()), c.RemoteRules(remote)}, section{string(outside.Owner()), c.RemoteRules(outside)})
}

func TestTenantFlows(t *testing.T) {
	for name, conntrack := range map[string]bool{"tenants": false, "tenants-conntrack": true} {
		t.Run(name, func(t *testing.T) {
			goldentest.Compare(t, "testdata/"+name+".flows", text(sorted(tenantSections(tenantSample(conntrack)))))
		})
	}
}

func TestTenantOwnersDoNotMeet(t *testing.T) {
	seen := map[string]string{}
	for _, s := range tenantSections(tenantSample(true)) {
		for _, r := range s.rules {
			key := r.Flow.Key().String()
			if other, ok := seen[key]; ok {
				t.Errorf("%s of %s is already %s's", key, s.owner, other)
			}
			seen[key] = s.owner
			if r.Purpose == "" {
				t.Errorf("%s has no purpose", key)
			}
		}
	}
}

// A step of a project's move changes only what it must, so that neither the order of a large change nor a packet during it makes a
// difference: admitting another VNID only adds flows, sending with it changes flows, and ending the move only removes flows.
func TestMoveStepsAreSmall(t *testing.T) {
	c, pods := tenantSample(true)
	at := pods[0]
	admitting, sending, done := at, at, at
	admitting.Admits = []uint32{77}
	sending.VNID, sending.Admits = 77, []uint32{42, 77}
	done.VNID = 77
	before := c.Pod(at)
	for _, step := range []struct {
		name               string
		pod                pipeline.Pod
		add, alter, remove int
	}{
		{"admit", admitting, 2, 0, 0}, // one flow for new connections, one for others
		{"send", sending, 0, 3, 0},    // ARP, IPv4, and the VNID of the receiver
		{"done", done, 0, 0, 2},
	} {
		after := c.Pod(step.pod)
		add, alter, remove := 0, 0, 0
		for key, flow := range after {
			if was, had := before[key]; !had {
				add++
			} else if !flow.Equal(was) {
				alter++
			}
		}
		for key := range before {
			if _, has := after[key]; !has {
				remove++
			}
		}
		if add != step.add || alter != step.alter || remove != step.remove {
			t.Errorf("%s adds %d, alters %d, removes %d flows; want %d, %d, %d", step.name, add, alter, remove, step.add, step.alter, step.remove)
		}
		before = after
	}
}

// In a flat network VNIDs make no difference.
func TestFlatIgnoresVNIDs(t *testing.T) {
	c, pods := tenantSample(true)
	c.Mode = pipeline.ModeSubnet
	for _, pod := range pods {
		with := c.Pod(pod)
		pod.VNID, pod.Admits = 0, nil
		without := c.Pod(pod)
		for key, flow := range with {
			if was, had := without[key]; !had || !flow.Equal(was) || len(with) != len(without) {
				t.Errorf("%s has %s because of its VNID", pod.Owner, flow)
			}
		}
	}
}

func TestVNIDOutOfRange(t *testing.T) {
	c, pods := tenantSample(false)
	for name, spoil := range map[string]func(*pipeline.Pod){
		"VNID": func(p *pipeline.Pod) { p.VNID = 1 << 24 }, "admitted VNID": func(p *pipeline.Pod) { p.Admits = []uint32{1, 1 << 24} },
	} {
		pod := pods[0]
		spoil(&pod)
		if err := c.CheckPod(pod); err == nil || !strings.Contains(err.Error(), "16777215") || len(c.Pod(pod)) != 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// documentTenants adds the flows between isolated projects that differ from the flat network's.
func documentTenants(b *strings.Builder) {
	flat := sample(true)
	tenants, pods := tenantSample(true)
	b.WriteString("\n## Isolated projects\n\n" +
		"With `redhat/openshift-ovs-multitenant` packets carry their sender's VNID. Pods a and b are of two projects, c is of b's and on its way to another, " +
		"d is of a global one. What differs then from the flows above, with Services:\n")
	before := map[string]bool{}
	for _, s := range tenantSections(flat, pods) {
		for _, r := range s.rules {
			before[r.Flow.String()] = true
		}
	}
	for _, s := range tenantSections(tenants, pods) {
		fresh := slices.DeleteFunc(s.rules, func(r openflow.Rule) bool { return before[r.Flow.String()] })
		if len(fresh) == 0 {
			continue
		}
		fmt.Fprintf(b, "\n### Owner `%s`, isolated\n\n| table | priority | match | actions | what for |\n|---|---|---|---|---|\n", s.owner)
		writeRules(b, fresh)
	}
}
