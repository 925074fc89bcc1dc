//go:build real

package objects

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/ovn/ovntest"
)

// OVN parses every match that CheckMatch allows: those of the tables, and random ones.
func TestOVNParsesMatches(t *testing.T) {
	c := ovntest.New(t, nil)
	c.Start(ovntest.Southbound)
	datapath := c.Sbctl("create", "Datapath_Binding", "tunnel_key=1", "external_ids:name=sw")
	matches := slices.Concat(slices.Sorted(maps.Keys(goodMatches())), slices.Sorted(maps.Keys(refusedByOVN())), generated(3000))
	slices.Sort(matches)
	matches = slices.Compact(matches)
	insert(c, datapath, matches)
	// ovn-trace parses all logical flows before it traces, and warns of each that does not parse. It may fail to trace.
	out, _ := ovntest.Try(nil, "ovn-trace", "--db="+c.SB(), "sw", "ip4")
	refused := map[string]string{}
	for line := range strings.Lines(out) {
		_, warning, _ := strings.Cut(line, "|WARN|")
		if match, why, ok := strings.Cut(warning, ": parsing expression failed "); ok {
			refused[match] = strings.TrimSpace(why)
		}
	}
	for match := range refusedByOVN() {
		if refused[match] == "" {
			t.Errorf("OVN parses %q, which the table says it refuses\n%s", match, out[:min(len(out), 1000)])
		}
	}
	allowed := 0
	for _, match := range matches {
		if CheckMatch(match) != nil {
			continue
		}
		allowed++
		if why := refused[match]; why != "" {
			t.Errorf("%q is allowed, and OVN refuses it: %s", match, why)
		}
	}
	if t.Logf("%d matches, %d allowed, %d refused by OVN", len(matches), allowed, len(refused)); allowed < 300 || len(refused) < 300 {
		t.Error("random matches are too seldom good or bad")
	}
}

// ovn-controller makes at most as many flows of a match as CheckMatch computes, and Open vSwitch takes them: if it refused one, none would
// be installed. It does so for ports of later fragments, and some negations match all packets: therefore CheckMatch refuses these.
func TestFlowsOfMatches(t *testing.T) {
	s := ovntest.NewSite(t, 1)
	const mac, address = "0a:58:0a:00:01:05", "10.0.1.5"
	s.Nbctl("ls-add", "sw", "--", "lsp-add", "sw", "p/1", "--", "lsp-set-addresses", "p/1", mac+" "+address)
	chassis := s.Chassis[0]
	chassis.Installed(t, chassis.AddPod(t, "p/1", mac, address+"/24", ""))
	s.Stop(ovntest.Northd) // it would remove the flows
	datapath := s.Sbctl("--bare", "--columns=_uuid", "find", "Datapath_Binding")
	matches := slices.DeleteFunc(slices.Concat(slices.Sorted(maps.Keys(goodMatches())), generated(3000)), func(match string) bool {
		return CheckMatch(match) != nil
	})
	everything := []string{"!ip.is_frag", "!ip.later_frag", "!ip.first_frag", "!ip4.mcast", "!ip6.mcast"}
	cookies := insert(s.Central, datapath, slices.Concat(matches, everything))
	last := insert(s.Central, datapath, []string{"ip4 && ip.ttl == 77"})[0]
	flows := map[string][]string{}
	ovntest.Eventually(t, "ovn-controller has made the flows", func() bool {
		clear(flows)
		for _, flow := range chassis.DumpFlows("br-int") {
			cookie, _, _ := strings.Cut(flow, ",")
			flows[cookie] = append(flows[cookie], flow)
		}
		return len(flows["cookie=0x"+last]) > 0
	})
	made, computed := 0, 0
	for i, match := range matches {
		got, most := len(flows["cookie=0x"+cookies[i]]), flowsOf(t, match)
		if got > most {
			t.Errorf("%q becomes %d flows, computed %d", match, got, most)
		}
		made, computed = made+got, computed+most
	}
	t.Logf("%d matches became %d flows, computed %d", len(matches), made, computed)
	for i, match := range everything {
		all := regexp.MustCompile(`priority=\d+,metadata=0x\d+ actions`)
		if got := flows["cookie=0x"+cookies[len(matches)+i]]; !slices.ContainsFunc(got, all.MatchString) {
			t.Errorf("%s does not match all packets:\n%s", match, strings.Join(got, "\n"))
		}
	}
	insert(s.Central, datapath, []string{"ip.later_frag && tcp.dst == 80"})
	ovntest.Eventually(t, "Open vSwitch refuses a flow", func() bool {
		log, err := os.ReadFile(filepath.Join(chassis.RunDir, "ovn-controller.log"))
		return err == nil && strings.Contains(string(log), "OFPBMC_BAD_PREREQ")
	})
}

// insert creates a logical flow for each match, with a priority of its own, and returns the cookies of their OpenFlow flows.
func insert(c *ovntest.Central, datapath string, matches []string) []string {
	var cookies []string
	for chunk := range slices.Chunk(matches, 200) {
		args := []string{}
		for _, match := range chunk {
			text, _ := json.Marshal(match)
			args = append(args, "--", "create", "Logical_Flow", "logical_datapath="+datapath, "pipeline=ingress", "table_id=0",
				fmt.Sprintf("priority=%d", 1+len(cookies)), "match="+string(text), `actions="next;"`)
			cookies = append(cookies, "")
		}
		uuids := strings.Fields(c.Sbctl(args...))
		for i, uuid := range uuids {
			cookies[len(cookies)-len(chunk)+i] = strings.TrimLeft(uuid[:8], "0")
		}
	}
	return cookies
}

// generated returns random matches, good and bad ones.
func generated(n int) []string {
	generator := rapid.Custom(func(r *rapid.T) string { return drawMatch(r, 3) })
	matches := make([]string, 0, n)
	for i := range n {
		matches = append(matches, generator.Example(i))
	}
	return matches
}

func drawMatch(r *rapid.T, depth int) string {
	kind := rapid.IntRange(0, 9).Draw(r, "kind")
	switch {
	case depth == 0 || kind < 3:
		return drawComparison(r)
	case kind == 3:
		return "!(" + drawMatch(r, depth-1) + ")"
	}
	operator := rapid.SampledFrom([]string{" && ", " || "}).Draw(r, "operator")
	var parts []string
	for range rapid.IntRange(2, 3).Draw(r, "parts") {
		parts = append(parts, drawMatch(r, depth-1))
	}
	return "(" + strings.Join(parts, operator) + ")"
}

func drawComparison(r *rapid.T) string {
	name := rapid.SampledFrom(append(symbols(), "0", "1")).Draw(r, "name")
	s, ok := symbolOf(name)
	if !ok {
		return name
	}
	if s.kind == predicate {
		return rapid.SampledFrom([]string{"", "", "", "", "!"}).Draw(r, "not") + name
	}
	operator := rapid.SampledFrom([]string{"==", "==", "==", "==", "==", "==", "!=", "!=", "<", "<=", ">", ">="}).Draw(r, "operator")
	values := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) string { return drawConstant(r, s) }), 1, 3).Draw(r, "values")
	if len(values) == 1 {
		return name + " " + operator + " " + values[0]
	}
	return name + " " + operator + " {" + strings.Join(values, ", ") + "}"
}

func drawConstant(r *rapid.T, s symbol) string {
	switch s.kind {
	case ip4Address:
		return rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.0/8", "10.1.0.0/16", "0.0.0.0/0", "192.168.1.0/24"}).Draw(r, "ip4")
	case ip6Address:
		return rapid.SampledFrom([]string{"fd00::1", "fd00::/8", "::/0", "::1", "fe80::/10"}).Draw(r, "ip6")
	case macAddress:
		return rapid.SampledFrom([]string{"0a:58:0a:00:01:05", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00"}).Draw(r, "mac")
	case portName:
		return rapid.SampledFrom([]string{`"p/1"`, `"q/1"`, `"net1/10.0.1.5"`}).Draw(r, "port")
	}
	most := uint64(1)<<s.bits - 1
	mask := rapid.SampledFrom([]uint64{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, most, most &^ 3}).Draw(r, "mask")
	n := rapid.Uint64Range(0, most).Draw(r, "number")
	if mask != 0 {
		n &= mask
	}
	format := func(n uint64) string {
		return fmt.Sprintf(rapid.SampledFrom([]string{"%d", "0x%x"}).Draw(r, "format"), n)
	}
	text := format(n)
	if mask != 0 {
		text += "/" + format(mask)
	}
	return text
}
