package openflow

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"weft.dev/weft/internal/openflow/wire"
)

// goldenPath holds one flow per line: as a real switch described it (without statistics), and the text that ovs-ofctl prints. The test
// behind the build tag `real` checks the file, and writes it with -update.
const goldenPath = "testdata/dump.golden"

type goldenFlow struct {
	wire []byte
	text string
}

func readGolden(t testing.TB) []goldenFlow {
	t.Helper()
	content, err := os.ReadFile(goldenPath)
	if err != nil {
		t.Fatal(err)
	}
	var flows []goldenFlow
	for line := range strings.Lines(string(content)) {
		digits, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		wire, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		flows = append(flows, goldenFlow{wire, text})
	}
	return flows
}

func TestFlowsOfARealSwitchPrintAsOvsOfctlPrintsThem(t *testing.T) {
	golden := readGolden(t)
	if len(golden) < 90 {
		t.Fatalf("only %d flows", len(golden))
	}
	for _, g := range golden {
		f, rest, err := decodeFlowDesc(g.wire)
		if err != nil || len(rest) != 0 {
			t.Errorf("%s: %v", g.text, err)
			continue
		}
		if f.String() != g.text {
			t.Errorf("prints\n%s\nwant\n%s", f, g.text)
		}
		if !bytes.Equal(EncodeFlowDesc(f), g.wire) {
			t.Errorf("%s encodes to other bytes than it was decoded from", f)
		}
	}
}

// FuzzFlowDesc starts from a real switch's descriptions: decoding never panics, and decoding what was encoded gives the same flow.
func FuzzFlowDesc(f *testing.F) {
	for _, g := range readGolden(f) {
		f.Add(g.wire)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		flows, err := DecodeFlows(b)
		if err != nil {
			return
		}
		for _, flow := range flows {
			encoded := EncodeFlowDesc(flow)
			if len(encoded) > wire.MaxMessage {
				continue
			}
			again, rest, err := decodeFlowDesc(encoded)
			if err != nil || len(rest) != 0 || !again.Equal(flow) || again.String() != flow.String() {
				t.Fatalf("%s\ndecodes again as\n%v: %v", flow, again, err)
			}
		}
	})
}
