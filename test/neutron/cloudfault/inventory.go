package cloudfault

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"

	"weft.dev/weft/internal/neutron/openstack"
)

// Inventory is what an OpenStack has: a line for each object, with its kind, id, name and owner.
type Inventory []string

// Take lists every kind of object that Weft can make.
func Take(ctx context.Context, c *openstack.Client) (Inventory, error) {
	var all Inventory
	for _, kind := range []struct {
		service *gophercloud.ServiceClient
		path    []string
		key     string
	}{
		{c.Identity, []string{"projects"}, "projects"},
		{c.Identity, []string{"users"}, "users"},
		{c.Identity, []string{"role_assignments"}, "role_assignments"},
		{c.Network, []string{"networks"}, "networks"},
		{c.Network, []string{"subnets"}, "subnets"},
		{c.Network, []string{"subnetpools"}, "subnetpools"},
		{c.Network, []string{"routers"}, "routers"},
		{c.Network, []string{"ports"}, "ports"},
		{c.Network, []string{"security-groups"}, "security_groups"},
		{c.Network, []string{"security-group-rules"}, "security_group_rules"},
		{c.Network, []string{"floatingips"}, "floatingips"},
		{c.LoadBalancer, []string{"lbaas", "loadbalancers"}, "loadbalancers"},
		{c.LoadBalancer, []string{"lbaas", "listeners"}, "listeners"},
		{c.LoadBalancer, []string{"lbaas", "pools"}, "pools"},
		{c.LoadBalancer, []string{"lbaas", "healthmonitors"}, "healthmonitors"},
	} {
		if kind.service == nil {
			continue
		}
		var answer map[string]any
		_, err := kind.service.Get(ctx, kind.service.ServiceURL(kind.path...), &answer, nil) //nolint:bodyclose // it is read
		if err != nil {
			return nil, fmt.Errorf("list OpenStack's %s: %w", kind.key, openstack.Explain(err))
		}
		objects, is := answer[kind.key].([]any)
		if !is {
			return nil, fmt.Errorf("list OpenStack's %s: the answer has no such list", kind.key)
		}
		for _, o := range objects {
			all = append(all, line(kind.key, o))
		}
	}
	slices.Sort(all)
	return all, nil
}

func line(kind string, object any) string {
	fields, _ := object.(map[string]any)
	words := []string{kind}
	for _, name := range []string{"id", "name", "device_owner", "description", "user", "role", "scope"} {
		if v := fields[name]; v != nil && v != "" {
			words = append(words, fmt.Sprintf("%s=%v", name, v))
		}
	}
	return strings.Join(words, " ")
}

// More returns what another inventory has beyond this one.
func (i Inventory) More(other Inventory) []string {
	var more []string
	for _, l := range other {
		if _, has := slices.BinarySearch(i, l); !has {
			more = append(more, l)
		}
	}
	return more
}
