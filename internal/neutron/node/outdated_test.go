package node

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/neutron/pipeline"
)

func TestOutdated(t *testing.T) {
	const tcp, udp = 6, 17
	of := func(protocol uint8, endpoints ...string) []pipeline.Service {
		s := pipeline.Service{Address: netip.MustParseAddr("10.96.0.9"), Port: pipeline.Port{Protocol: protocol, Number: 53}}
		for _, e := range endpoints {
			s.Endpoints = append(s.Endpoints, pipeline.Endpoint{Addr: netip.MustParseAddrPort(e)})
		}
		return []pipeline.Service{s}
	}
	const a, b = "10.244.0.5:5353", "10.244.0.6:5353"
	for name, c := range map[string]struct {
		before, after []pipeline.Service
		want          []string
	}{
		"nothing changes":         {of(udp, a, b), of(udp, a, b), nil},
		"an endpoint is added":    {of(udp, a), of(udp, a, b), nil},
		"an endpoint is removed":  {of(udp, a, b), of(udp, b), []string{"all 17 10.96.0.9:53 by 10.244.0.5:5353"}},
		"the last one is removed": {of(udp, a), of(udp), []string{"all 17 10.96.0.9:53 by 10.244.0.5:5353"}},
		"the first one is added":  {of(udp), of(udp, a), nil},
		"the Service is deleted":  {of(udp, a), nil, []string{"all 17 10.96.0.9:53 by 10.244.0.5:5353"}},
		"the Service is created":  {[]pipeline.Service{}, of(udp), []string{"7 17 10.96.0.9:53 by 10.96.0.9:53", "8 17 10.96.0.9:53 by 10.96.0.9:53"}},
		"the agent starts":        {nil, of(udp, a), nil},
		"TCP":                     {of(tcp, a, b), of(tcp, b), nil},
		"another protocol":        {of(udp, a), of(tcp, a), []string{"all 17 10.96.0.9:53 by 10.244.0.5:5353", "7 6 10.96.0.9:53 by 10.96.0.9:53", "8 6 10.96.0.9:53 by 10.96.0.9:53"}},
	} {
		var got []string
		for _, f := range outdated(c.before, c.after, []uint16{7, 8}) {
			zone := "all"
			if f.Zone != nil {
				zone = fmt.Sprint(*f.Zone)
			}
			got = append(got, fmt.Sprintf("%s %d %s:%d by %s:%d", zone, f.Proto, f.Orig.Dst, f.Orig.DstPort, f.Reply.Src, f.Reply.SrcPort))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// The TCP connections of a pod are flushed when they are not tracked any more.
func TestUntracked(t *testing.T) {
	pod := *podNumber(t, "blue", 1, 1)
	zones := zonesOf([]attach.Record{pod})
	for name, c := range map[string]struct {
		before, after tracked
		want          bool
	}{
		"never tracked": {tracked{}, tracked{}, false}, "tracked now": {tracked{}, tracked{v4: true}, false},
		"tracked still": {tracked{v4: true, v6: true}, tracked{v4: true, v6: true}, false},
		"not any more":  {tracked{v4: true}, tracked{}, true}, "IPv6 not any more": {tracked{v4: true, v6: true}, tracked{v4: true}, true},
	} {
		w := world{attached: []attach.Record{pod}, tracked: map[attach.Key]tracked{pod.Key(): c.after}}
		got := untracked(&w, map[attach.Key]tracked{pod.Key(): c.before})
		if len(got) > 0 != c.want || c.want && (*got[0].Zone != zones[0] || got[0].Proto != 6) {
			t.Errorf("%s: %v", name, got)
		}
	}
}
