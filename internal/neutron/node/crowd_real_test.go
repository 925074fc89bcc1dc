//go:build real

package node

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/ovn/ovntest"
)

// zones are the conntrack zones of pods that have connections.
func (m *machine) zones(t *testing.T) map[int]bool {
	t.Helper()
	found := map[int]bool{}
	for _, match := range regexp.MustCompile(`zone=(\d+)`).FindAllStringSubmatch(m.AppCtl("dpctl/dump-conntrack"), -1) {
		zone, err := strconv.Atoi(match[1])
		must(t, err)
		if zone >= host.FirstZone {
			found[zone] = true
		}
	}
	return found
}

// Pods come and go, each time on new ports. They use as many conntrack zones as there are pods at a time, and leave no flow and no port.
func TestZonesAreUsedAgain(t *testing.T) {
	boot, err := attach.ReadBootID()
	must(t, err)
	m := &machine{Switch: ovstest.Start(t), name: "crowded", boot: boot, ports: portsSpace(t)}
	m.VSCtl("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type="+ovstest.Datapath)
	ovntest.Run(t, m.NetNS, "ip", "link", "set", "lo", "up")
	own := tenant(t, "crowded")
	n, stop := m.serve(t, filepath.Join(t.TempDir(), "attachments"))
	t.Cleanup(stop)
	eventually(t, "the node is ready", n.Ready)
	const rounds, together = 3, 4
	before, all := len(m.DumpFlows("br-n")), map[int]bool{}
	for round := range rounds {
		var objects []*weftv1.NeutronPort
		for i := range together {
			objects = append(objects, portOf{network: own, node: m.name, tag: 92, number: together*round + i}.create(t))
		}
		name := func(i int) string { return fmt.Sprintf("pod-%d-%d", round, i) }
		for i := range together {
			_, address := n.add(t, own.Namespace, name(i))
			must(t, n.pings(address))
		}
		for zone := range m.zones(t) {
			all[zone] = true
		}
		for i := range together {
			n.del(t, own.Namespace, name(i))
			must(t, api(t).Delete(t.Context(), objects[i]))
		}
		eventually(t, "nothing is left of pods and ports", func() error {
			if left := m.VSCtl("list-ports", "br-int") + m.VSCtl("list-ports", "br-n"); left != "weft-n0\n" {
				return errors.New("ports: " + left)
			}
			if flows := m.DumpFlows("br-n"); len(flows) != before {
				return fmt.Errorf("%d flows, %d before: %v", len(flows), before, flows)
			}
			return nil
		})
	}
	if len(all) != together {
		t.Errorf("%d pods, %d at a time, had %d zones: %v", rounds*together, together, len(all), all)
	}
}
