package plan

import (
	"net/netip"
	"strings"
	"testing"

	"weft.dev/weft/internal/clusternetwork"
)

func TestDefault(t *testing.T) {
	for name, test := range map[string]struct {
		services string
		address  string
		want     string // the range of Services, or part of the only problem
	}{
		"no range is known":     {"", "192.0.2.1", "172.30.0.0/16"},
		"the API server's":      {"10.96.0.0/12", "192.0.2.1", "10.96.0.0/12"},
		"no address yet":        {"", "", "172.30.0.0/16"},
		"Services among pods":   {"10.130.0.0/16", "192.0.2.1", "the range of Services 10.130.0.0/16 overlaps 10.128.0.0/14"},
		"nodes among pods":      {"", "10.129.3.4", "address 10.129.3.4 of node n1 lies in 10.128.0.0/14"},
		"nodes among Services":  {"10.96.0.0/12", "10.100.0.1", "address 10.100.0.1 of node n1"},
		"an address of nothing": {"", "nonsense", "172.30.0.0/16"},
	} {
		services, _ := netip.ParsePrefix(test.services)
		network, problems := Default(services, []Node{{Name: "n1", UID: "u1", Address: test.address}})
		if network == nil {
			if len(problems) != 1 || !strings.Contains(problems[0].Message, test.want) || !strings.Contains(problems[0].Message, "create one with other ranges") {
				t.Errorf("%s: %+v, want one problem with %q", name, problems, test.want)
			}
			continue
		}
		if config, err := clusternetwork.Parse(network); err != nil || config.ServiceNetwork.String() != test.want || config.Mode != clusternetwork.ModeNetworkPolicy || len(problems) > 0 {
			t.Errorf("%s: %+v %v %v", name, config, err, problems)
		}
	}
}
