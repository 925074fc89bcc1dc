//go:build lab

package vpc

import (
	"context"
	"regexp"
	"testing"
	"time"

	soak "weft.dev/weft/test/soak/vpc"
)

// TestFaultsOfManifest runs those faults of the soak that TestFailures does not have or does not judge, on OVN in pods of the manifest, under
// traffic within a subnet, across subnets, through the gateway and to a floating IP. The container of the NAT gateway is killed: no packet is
// lost. ovn-controller is killed: those of 0.3 s may be lost. Both databases are replaced by empty ones: those of 0.5 s. Each time a new pod is
// served, and the northbound database has the same rows. The lab leaves nothing on the machine.
func TestFaultsOfManifest(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	const control, faults = 1, 1 + 2 + 1 // the gateway, ovn-controller of two nodes, the databases
	rows := 0
	err := soak.Run(ctx, soak.Options{
		Lab: "vpcmanifest", Bin: weftBin, Faults: regexp.MustCompile(`vpc-nat-gw|ovn-controller|both databases`), Say: t.Logf,
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
