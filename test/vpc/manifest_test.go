//go:build lab

package vpc

import (
	"context"
	"flag"
	"regexp"
	"testing"
	"time"

	"weft.dev/weft/lab"
	soak "weft.dev/weft/test/soak/vpc"
)

// windows is smaller where a landing has no time.
var windows = flag.Float64("lab.windows", 1, "share of its usual length that traffic after a fault has") //nolint:gochecknoglobals // a flag of the test binary

// leeway is for a busy machine, on which flows are installed more slowly. A node that loses its flows until the databases are filled again loses
// the packets of several seconds there. The soak, which has the machine for itself, judges without it.
const leeway = 4

// faultsOfManifest runs those faults of the soak that TestFailures does not have or does not judge, on OVN in pods of the manifest, under
// traffic within a subnet, across subnets, through the gateway and to a floating IP. The container of the NAT gateway is killed: no packet is
// lost. ovn-controller is killed: those of 0.3 s may be lost. Both databases are replaced by empty ones: those of 0.5 s, each times leeway. Each
// time a new pod is served, and the northbound database has the same rows.
func faultsOfManifest(ctx context.Context, t *testing.T, c *lab.Cluster) {
	t.Helper()
	const control, faults = 1, 1 + 2 + 1 // the gateway, ovn-controller of two nodes, the databases
	rows := 0
	err := soak.RunIn(ctx, c, soak.Options{
		Faults: regexp.MustCompile(`vpc-nat-gw|ovn-controller|both databases`), Leeway: leeway,
		Calm: time.Duration(float64(soak.CalmTime) * *windows),
	}, func(row soak.Row) {
		rows++
		t.Logf("%s: %d packets, %d lost, back after %s", row.Name, row.Sent, row.Lost, row.Back.Round(time.Millisecond))
		for _, wrong := range row.Wrong {
			t.Errorf("%s: %v", row.Name, wrong)
		}
		if row.Lossy != nil {
			t.Errorf("%s: %v", row.Name, row.Lossy)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if rows != control+faults {
		t.Errorf("%d rows, want those of the control and of %d faults", rows, faults)
	}
}
