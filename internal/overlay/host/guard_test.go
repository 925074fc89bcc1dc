package host_test

import (
	"strings"
	"testing"
)

// The host rejects what its own translations, or fragments, hide from the flows. With nothing closed there are no such rules.
func TestGuard(t *testing.T) {
	c := sample()
	rules := lines("rules", c.Rules())
	for _, want := range []string{
		`iifname "tun0" ip daddr 169.254.169.254 meta l4proto { tcp, udp } th dport != 53 reject`,
		`iifname "tun0" ip daddr != @pods tcp dport 22623 tcp flags & (syn | ack) == syn reject with tcp reset`,
		`iifname "tun0" tcp dport 22624 tcp flags & (syn | ack) == syn reject with tcp reset`,
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
	c.Metadata, c.ClosedTCP = nil, nil
	if rules := lines("rules", c.Rules()); strings.Contains(rules, "guard") {
		t.Errorf("nothing is closed, and there are rules:\n%s", rules)
	}
}
