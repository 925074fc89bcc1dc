package plan_test

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/nat"
)

// Whatever text is in a field of a gateway, an EIP or a rule, neither a row nor a gateway's state contains it, its object reports it, and
// other objects are not affected.
func TestHostileStringsOfGateways(t *testing.T) {
	type bad struct {
		gateway *kubeovn.VpcNatGateway
		eip     *kubeovn.IptablesEIP
		snat    *kubeovn.IptablesSnatRule
		fip     *kubeovn.IptablesFIPRule
		dnat    *kubeovn.IptablesDnatRule
	}
	for field, change := range map[string]func(w *world, b *bad, text string){
		"gateway spec.lanIp":    func(_ *world, b *bad, text string) { b.gateway.Spec.LanIP = text },
		"gateway spec.vpc":      func(_ *world, b *bad, text string) { b.gateway.Spec.Vpc = text },
		"gateway spec.subnet":   func(_ *world, b *bad, text string) { b.gateway.Spec.Subnet = text },
		"gateway spec.selector": func(_ *world, b *bad, text string) { b.gateway.Spec.Selector = []string{text} },
		"gateway spec.externalSubnets[0]": func(_ *world, b *bad, text string) {
			b.gateway.Spec.ExternalSubnets = []string{text}
		},
		"gateway spec.config.master": func(w *world, b *bad, text string) {
			w.secondOutside(definitionOf(text, "bridge"))
			b.gateway = w.gateways["bad"]
		},
		"gateway spec.config.mode": func(w *world, b *bad, text string) {
			w.secondOutside(definitionOf("ens37", text))
			b.gateway = w.gateways["bad"]
		},
		"eip spec.v4ip":           func(_ *world, b *bad, text string) { b.eip.Spec.V4ip = text },
		"eip spec.natGwDp":        func(_ *world, b *bad, text string) { b.eip.Spec.NatGwDp = text },
		"eip spec.externalSubnet": func(_ *world, b *bad, text string) { b.eip.Spec.ExternalSubnet = text },
		"snat spec.internalCIDR":  func(_ *world, b *bad, text string) { b.snat.Spec.InternalCIDR = text },
		"snat spec.eip":           func(_ *world, b *bad, text string) { b.snat.Spec.EIP = text },
		"fip spec.internalIp":     func(_ *world, b *bad, text string) { b.fip.Spec.InternalIP = text },
		"fip spec.eip":            func(_ *world, b *bad, text string) { b.fip.Spec.EIP = text },
		"dnat spec.internalIp":    func(_ *world, b *bad, text string) { b.dnat.Spec.InternalIP = text },
		"dnat spec.internalPort":  func(_ *world, b *bad, text string) { b.dnat.Spec.InternalPort = text },
		"dnat spec.externalPort":  func(_ *world, b *bad, text string) { b.dnat.Spec.ExternalPort = text },
		"dnat spec.protocol":      func(_ *world, b *bad, text string) { b.dnat.Spec.Protocol = text },
		"dnat spec.eip":           func(_ *world, b *bad, text string) { b.dnat.Spec.EIP = text },
	} {
		for _, text := range hostile() {
			w := settledUsers(t)
			others := w.conditions()
			b := &bad{}
			kind, name, _ := strings.Cut(field, " ")
			switch kind {
			case "gateway":
				w.secondGateway("10.0.1.200")
				b.gateway = w.gateways["bad"]
			case "eip":
				b.eip = w.eip("bad", 30, "192.168.100.240")
			case "snat":
				w.snat("bad", 30, "eip1", "10.0.1.128/25")
				b.snat = w.snats["bad"]
			case "fip":
				w.eip("new", 29, "192.168.100.240")
				w.fip("bad", 30, "new", "10.0.1.9")
				b.fip = w.fips["bad"]
			case "dnat":
				b.dnat = &kubeovn.IptablesDnatRule{ObjectMeta: created("bad", 30), Spec: kubeovn.IptablesDnatRuleSpec{
					EIP: "eip1", ExternalPort: "81", InternalIP: "10.0.1.6", InternalPort: "80", Protocol: "tcp",
				}}
				w.dnats["bad"] = b.dnat
			}
			change(w, b, text)
			for range 20 {
				if !w.step(t) {
					break
				}
			}
			if have := readyOfBad(w, kind); !strings.HasPrefix(have, "False ") || !strings.Contains(have, name) {
				t.Errorf("%s: %.40q: condition %q", field, text, have)
			}
			for key, row := range w.database.Rows() {
				if strings.Contains(row.String(), text) {
					t.Errorf("%s: %.40q: row %s has it", field, text, key)
				}
			}
			for gateway, g := range nat.Compile(w.natObjects()).Gateways {
				for key, item := range g.Result.State.Items {
					if strings.Contains(item.String(), text) {
						t.Errorf("%s: %.40q: %s of gateway %s has it", field, text, key, gateway)
					}
				}
			}
			now := w.conditions()
			for line := range strings.SplitSeq(others, "\n") { // a gateway's has the hash of its state, which may have a new EIP
				if !strings.HasPrefix(line, "gateway ") && !strings.Contains(now, line) {
					t.Errorf("%s: %.40q: another object said %q; now:\n%s", field, text, line, now)
				}
			}
		}
	}
}

// definitionOf returns a configuration with a master and a mode.
func definitionOf(master, mode string) string {
	text, err := json.Marshal(map[string]string{"type": "macvlan", "master": master, "mode": mode})
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// readyOfBad returns condition Ready of the object "bad" of a kind.
func readyOfBad(w *world, kind string) string {
	var conditions []metav1.Condition
	switch kind {
	case "gateway":
		conditions = w.gateways["bad"].Status.Conditions
	case "eip":
		conditions = w.eips["bad"].Status.Conditions
	case "snat":
		conditions = w.snats["bad"].Status.Conditions
	case "fip":
		conditions = w.fips["bad"].Status.Conditions
	case "dnat":
		conditions = w.dnats["bad"].Status.Conditions
	}
	return condition(conditions, "Ready")
}
