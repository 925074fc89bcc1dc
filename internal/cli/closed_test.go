package cli

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/agent"
)

// By default, pods cannot reach the metadata service and the ports of ignition files. An empty value opens them; an invalid one is refused.
func TestClosedFlags(t *testing.T) {
	metadata, ports := []netip.Addr{netip.MustParseAddr("169.254.169.254")}, []uint16{22623, 22624}
	for _, test := range []struct {
		args []string
		want agent.Options
		bad  bool
	}{
		{want: agent.Options{MetadataAddresses: metadata, ClosedNodePorts: ports}},
		{args: []string{"--metadata-addresses="}, want: agent.Options{ClosedNodePorts: ports}},
		{args: []string{"--closed-node-ports="}, want: agent.Options{MetadataAddresses: metadata}},
		{args: []string{"--closed-node-ports=80", "--metadata-addresses=100.100.100.200"}, want: agent.Options{
			MetadataAddresses: []netip.Addr{netip.MustParseAddr("100.100.100.200")}, ClosedNodePorts: []uint16{80},
		}},
		{args: []string{"--closed-node-ports=0"}, bad: true},
		{args: []string{"--closed-node-ports=http"}, bad: true},
		{args: []string{"--metadata-addresses=metadata"}, bad: true},
	} {
		var closed closedFlags
		var opts agent.Options
		cmd := &cobra.Command{}
		closed.register(cmd)
		if err := cmd.ParseFlags(test.args); err != nil {
			t.Fatal(err)
		}
		if err := closed.parse(&opts); (err != nil) != test.bad {
			t.Errorf("%q: %v", test.args, err)
		}
		if !test.bad && !reflect.DeepEqual(opts, test.want) {
			t.Errorf("%q: %+v", test.args, opts)
		}
	}
}
