package host_test

import (
	"strings"
	"testing"
)

// The host rejects what its own translations, or fragments, hide from the flows, also of
// clients that are not pods. With nothing closed there are no such rules.
func TestGuard(t *testing.T) {
	c := sample()
	rules := lines("rules", c.Rules())
	for _, want := range []string{
		`ip daddr 169.254.169.254 jump guard-metadata`,
		`meta l4proto { tcp, udp } th dport 53 return`,
		`iifname != "lo" ct direction original ct status dnat reject`,
		`tcp flags & (syn | ack) == syn ip daddr != @pods jump guard-ports`,
		`iifname "tun0" tcp dport 22624 reject with tcp reset`,
		`iifname != "lo" tcp dport 22624 ct original proto-dst != 22624 reject with tcp reset`,
	} {
		if !strings.Contains(rules, want) {
			t.Errorf("there is no rule %s", want)
		}
	}
	const atGateway = "ct original ip daddr @pods ip daddr != @pods reject"
	if !strings.Contains(rules, atGateway) {
		t.Error("node ports at a gateway lead pods past egress firewalls")
	}
	c.Egress = false
	if strings.Contains(lines("rules", c.Rules()), atGateway) {
		t.Error("node ports at a gateway are closed in a network without egress firewalls")
	}
	metadata := c.Metadata
	c.Metadata = nil
	if rules := lines("rules", c.Rules()); strings.Contains(rules, "guard-metadata") || !strings.Contains(rules, "jump guard-ports") {
		t.Errorf("ports are closed, and the metadata service is not:\n%s", rules)
	}
	c.Metadata, c.ClosedTCP = metadata, nil
	if rules := lines("rules", c.Rules()); strings.Contains(rules, "guard-ports") || !strings.Contains(rules, "jump guard-metadata") {
		t.Errorf("the metadata service is closed, and ports are not:\n%s", rules)
	}
	c.Metadata, c.ClosedTCP = nil, nil
	if rules := lines("rules", c.Rules()); strings.Contains(rules, "guard") {
		t.Errorf("nothing is closed, and there are rules:\n%s", rules)
	}
}
