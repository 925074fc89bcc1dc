//go:build real

package node

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/ovn/ovntest"
	"weft.dev/weft/test/traffic"
)

// limitedSite is a node with three pods of one network, of which the first is limited. br-int has no controller, and switches as it does
// without one.
type limitedSite struct {
	*served
	stop      func()
	dir       string
	pods      [3]*ovntest.Pod
	addresses [3]string
	// link is the host veth of the limited pod.
	link string
}

const (
	receiveLimit, sendLimit = 1_000_000, 600_000 // bits a second
	// window is how long rates are measured.
	window = 1500 * time.Millisecond
)

// newMachine is a node with four ports of a network with its name. br-int has no controller.
func newMachine(t *testing.T, name string, tag int) *machine {
	t.Helper()
	boot, err := attach.ReadBootID()
	must(t, err)
	m := &machine{Switch: ovstest.Start(t), name: name, boot: boot, ports: portsSpace(t)}
	m.VSCtl("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type="+ovstest.Datapath)
	ovntest.Run(t, m.NetNS, "ip", "link", "set", "lo", "up")
	own := tenant(t, name)
	for number := range 4 {
		portOf{network: own, node: m.name, tag: tag, number: number}.create(t)
	}
	return m
}

func newLimitedSite(t *testing.T) *limitedSite {
	t.Helper()
	m := newMachine(t, "limited", 90)
	ports := m.ports
	s := &limitedSite{dir: filepath.Join(t.TempDir(), "attachments")}
	for i := range s.pods {
		s.pods[i] = ovntest.NewPod(t)
	}
	m.ports += "-missing"
	s.begin(t, m)
	if _, err := s.handler.Add(t.Context(), s.add(0)); cni.AsError(err).Code != cni.CodeTryAgainLater || !strings.Contains(err.Error(), m.ports) {
		t.Errorf("ADD without the namespace of ports: %v", err)
	}
	s.stop()
	m.ports = ports
	s.begin(t, m)
	for i := range s.pods {
		result, err := s.handler.Add(t.Context(), s.add(i))
		must(t, err)
		s.addresses[i] = result.IPs[0].Address.IP.String()
		if i == 0 {
			s.link = result.Interfaces[0].Name
		}
	}
	return s
}

// add is the request for one of the pods.
func (s *limitedSite) add(i int) *cni.Request {
	request := s.request(cni.CommandAdd, "limited", fmt.Sprint(i), s.pods[i].ProcPath())
	if i == 0 {
		request.NetConf.RuntimeConfig.Bandwidth = fmt.Appendf(nil, `{"ingressRate":%d,"ingressBurst":4294967295,"egressRate":%d,"egressBurst":4294967295}`, receiveLimit, sendLimit)
	}
	return request
}

// begin starts the agent's part.
func (s *limitedSite) begin(t *testing.T, m *machine) {
	t.Helper()
	s.served, s.stop = m.serve(t, s.dir)
	t.Cleanup(s.stop)
	eventually(t, "the node is ready", s.Ready)
}

func (s *limitedSite) check(t *testing.T) error {
	t.Helper()
	return s.handler.Check(t.Context(), s.request(cni.CommandCheck, "limited", "0", s.pods[0].ProcPath()))
}

// measure floods pods at three times the limits, and checks that limited traffic is limited, and other traffic is much faster.
func (s *limitedSite) measure(t *testing.T, when string) {
	t.Helper()
	type flow struct {
		name     string
		from, to int
		limit    uint64
		flood    *traffic.Flood
	}
	flows := []*flow{
		{name: "received", from: 1, to: 0, limit: receiveLimit}, {name: "sent", from: 0, to: 1, limit: sendLimit}, {name: "of others", from: 1, to: 2},
	}
	const floodPort = 7794
	for _, f := range flows {
		reaches(t, s.pods[f.from], s.addresses[f.to])
		var err error
		f.flood, err = traffic.NewFlood(s.pods[f.from].ProcPath(), s.pods[f.to].ProcPath(), netip.AddrPortFrom(netip.MustParseAddr(s.addresses[f.to]), floodPort), 3*receiveLimit)
		must(t, err)
		defer func() { must(t, f.flood.Close()) }()
	}
	eventually(t, when+": packets of all pass, and others' are faster than the limit", func() error {
		began, before := time.Now(), make([]uint64, len(flows))
		for i, f := range flows {
			before[i] = f.flood.Arrived()
		}
		<-time.After(window)
		var missing []error
		for i, f := range flows {
			arrived := 8 * (f.flood.Arrived() - before[i])
			took := time.Since(began) // not less than the counted packets took
			most := uint64(1.15 * took.Seconds() * float64(f.limit))
			switch {
			case f.limit > 0 && arrived > most:
				// Counted late, datagrams of before the window are in it: a limit that is not in effect fails all windows.
				missing = append(missing, fmt.Errorf("%s: %d bits in %v, the limit is %d a second", f.name, arrived, took, f.limit))
			case f.limit > 0 && arrived == 0, f.limit == 0 && arrived < uint64(1.5*took.Seconds()*receiveLimit):
				missing = append(missing, fmt.Errorf("%s: %d bits in %v", f.name, arrived, took))
			}
		}
		return errors.Join(missing...)
	})
}

// What a pod receives and sends is limited, and nothing else is; also after a restart of the agent. Limits that another program removed are
// restored, and a removed pod leaves nothing of them.
func TestBandwidth(t *testing.T) {
	s := newLimitedSite(t)
	tc := func(args ...string) string {
		return ovntest.Run(t, s.NetNS, "nsenter", append([]string{"--net=" + s.machine.ports, "tc"}, args...)...)
	}
	must(t, s.check(t))
	s.measure(t, "after ADD")
	want := tc("qdisc", "show")
	if !strings.Contains(want, "tbf") {
		t.Fatalf("qdiscs: %s", want)
	}

	s.stop()
	s.begin(t, s.machine)
	if now := tc("qdisc", "show"); now != want {
		t.Errorf("a restart changed the limits: %s\nthey were: %s", now, want)
	}
	s.measure(t, "after a restart")

	s.stop()
	tc("qdisc", "del", "dev", s.link, "root")
	tc("qdisc", "del", "dev", s.link, "ingress")
	s.begin(t, s.machine)
	eventually(t, "the limits are restored", func() error { return s.check(t) })

	s.del(t, "limited", "0")
	eventually(t, "nothing remains of the limits", func() error {
		left := tc("qdisc", "show") + ovntest.Run(t, s.NetNS, "nsenter", "--net="+s.machine.ports, "ip", "-o", "link")
		if strings.Contains(left, "-in") || strings.Contains(left, "tbf") {
			return errors.New(left)
		}
		return nil
	})
	if left := s.VSCtl("list", "qos") + s.VSCtl("list", "queue"); left != "" {
		t.Errorf("rows of QoS: %s", left)
	}
}
