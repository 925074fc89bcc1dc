package nat_test

import (
	"fmt"
	"testing"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/nat"
)

// A gateway has a requested address from the EIP's finalizer on, unless another object has it: by its status, or by an older EIP's finalizer.
// Former releases added the finalizer to every EIP.
func TestRequestedAddress(t *testing.T) {
	const address = "192.168.100.150"
	requested := func(name string, second int64, finalizers ...string) kubeovn.IptablesEIP {
		eip := kubeovn.IptablesEIP{ObjectMeta: made(name, second), Spec: kubeovn.IptablesEIPSpec{NatGwDp: "g0", V4ip: address}}
		eip.Finalizers = finalizers
		return eip
	}
	for name, c := range map[string]struct {
		change func(*nat.Objects)
		want   map[string]bool // by gateway and EIP
	}{
		"without a finalizer": {func(o *nat.Objects) { o.EIPs = append(o.EIPs, requested("r", 9)) }, map[string]bool{"g0 r": false}},
		"with the finalizer":  {func(o *nat.Objects) { o.EIPs = append(o.EIPs, requested("r", 9, kubeovn.Finalizer)) }, map[string]bool{"g0 r": true}},
		"no host's address": {func(o *nat.Objects) {
			for i, addr := range []string{"192.168.100.0", "192.168.100.1", "192.168.100.255"} {
				eip := requested(fmt.Sprint("r", i), int64(9+i), kubeovn.Finalizer)
				eip.Spec.V4ip = addr
				o.EIPs = append(o.EIPs, eip)
			}
		}, map[string]bool{"g0 r0": false, "g0 r1": false, "g0 r2": false}},
		"of a younger EIP by its status": {func(o *nat.Objects) {
			o.EIPs = append(o.EIPs, requested("r", 1, kubeovn.Finalizer))
			o.EIPs[3].Status.IP = address // of g1
		}, map[string]bool{"g0 r": false, "g1 e11": true}},
		"of another gateway itself": {func(o *nat.Objects) {
			o.EIPs = append(o.EIPs, requested("r", 1, kubeovn.Finalizer))
			o.Gateways[1].Status.IP = address
		}, map[string]bool{"g0 r": false}},
		"of an older EIP by its finalizer": {func(o *nat.Objects) {
			older := requested("older", 8, kubeovn.Finalizer)
			older.Spec.NatGwDp = "g1"
			o.EIPs = append(o.EIPs, requested("r", 9, kubeovn.Finalizer), older)
		}, map[string]bool{"g0 r": false, "g1 older": true}},
	} {
		t.Run(name, func(t *testing.T) {
			o := twoGateways()
			c.change(o)
			network := nat.Compile(o)
			for pair, want := range c.want {
				var gateway, eip string
				if _, err := fmt.Sscan(pair, &gateway, &eip); err != nil {
					t.Fatal(err)
				}
				if have := network.Gateways[gateway].Has(eip); have != want {
					t.Errorf("gateway %s has EIP %s: %t, want %t", gateway, eip, have, want)
				}
			}
		})
	}
}
