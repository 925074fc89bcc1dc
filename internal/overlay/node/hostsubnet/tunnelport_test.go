package hostsubnet

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

func hostSubnetAt(uid string, ports ...int32) *networkv1.HostSubnet {
	return &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Status: networkv1.HostSubnetStatus{VXLANPorts: ports}}
}

// The port is that of the first ClusterNetwork that the node has observed. It survives restarts of the agent, until the node is a new one.
func TestTunnelPortIsFixed(t *testing.T) {
	var log bytes.Buffer
	newPort := func() *TunnelPort { return NewTunnelPort(slog.New(slog.NewTextHandler(&log, nil))) }
	p := newPort()
	expect := func(what string, wanted uint16, own *networkv1.HostSubnet, want uint16) {
		t.Helper()
		got := p.Settle(wanted, own)
		if got != want || !slices.Equal(p.Reported(), []uint16{want}) {
			t.Errorf("%s: port %d, it reports %v, want %d", what, got, p.Reported(), want)
		}
		if refused := p.Refusal(); (refused != "") != (wanted != want) || refused != "" && (!strings.Contains(refused, "vxlanPort") || !strings.Contains(refused, "weft cleanup")) {
			t.Errorf("%s: it says %q", what, refused)
		}
	}
	if p.Reported() != nil || p.Refusal() != "" {
		t.Errorf("before the first port: %v %q", p.Reported(), p.Refusal())
	}
	expect("a new node", 4789, hostSubnetAt(""), 4789)
	expect("another port", 4790, hostSubnetAt("", 4789), 4789)
	expect("still another port", 4790, hostSubnetAt("", 4789), 4789)
	if lines := strings.Count(log.String(), "refused"); lines != 1 {
		t.Errorf("%d lines in the log, want one: %s", lines, &log)
	}
	p = newPort()
	expect("the agent starts again", 4790, hostSubnetAt("", 4789), 4789)
	expect("the former port", 4789, hostSubnetAt("", 4789), 4789)
	expect("a report by another program", 4789, hostSubnetAt("", 4791), 4789)
	expect("a new HostSubnet", 4790, hostSubnetAt("new"), 4790)
	p = newPort()
	expect("the report of an agent of the former release while tunnels move", 4790, hostSubnetAt("", 4789, 4790), 4789)
	p = newPort()
	expect("no port", 4790, hostSubnetAt("", -1), 4790)
	p = newPort()
	expect("too large a port", 4790, hostSubnetAt("", 65536+4789), 4790)
}
