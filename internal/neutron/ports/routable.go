package ports

import (
	"fmt"
)

// routable returns why the node cannot route a port's addresses to a pod. A route to it would divert what the node sends to others.
func (o *Options) routable(s *Spec) error {
	for _, p := range s.Addresses {
		if !p.Addr().Is4() {
			continue // only IPv4 is routed
		}
		where, err := o.Elsewhere(p.Addr())
		if err != nil {
			return fmt.Errorf("spec.addresses: %w", err)
		}
		if where != "" {
			return fmt.Errorf("spec.addresses: no pod can have %s on this node: %s", p.Addr(), where)
		}
	}
	return nil
}
