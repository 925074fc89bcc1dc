package ruleset

import (
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nfnetlink"
)

// kernelTable is what only netlink tells of a table.
type kernelTable struct {
	rules   nfnetlink.Digests
	dynamic map[string]bool   // sets to which rules add elements; nft 1.0.6 omits the flag in JSON
	devices map[string]string // of ingress and egress chains; nft 1.0.6 omits them in JSON
}

// read reads the table by netlink, in the namespace of the calling thread. With nfnetlink.ErrUndecoded, the objects are missing.
func (l *listing) read() error {
	family := numberOf(l.table.family)
	l.kernel = kernelTable{devices: map[string]string{}}
	list := &objects{tables: []tableObject{{l.table.family, l.table.name}}}
	chains, err := nfnetlink.Chains(family)
	if err != nil {
		return err //nolint:wrapcheck // it says what it listed
	}
	for i := range chains {
		if c := &chains[i]; c.Table == l.table.name {
			list.chains = append(list.chains, newChainObject(c))
			if c.Hook != nil && len(c.Hook.Devices) > 0 {
				l.kernel.devices[c.Name] = c.Hook.Devices[0]
			}
		}
	}
	if l.kernel.rules, err = nfnetlink.Rules(family, l.table.name); err != nil {
		return err //nolint:wrapcheck // it says what it listed
	}
	l.kernel.dynamic, err = nfnetlink.DynamicSets(family, l.table.name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nft.ErrMissing
	case err != nil:
		return err //nolint:wrapcheck // it says what it listed
	}
	if err := l.readSets(list); err != nil {
		return err
	}
	l.objects = list
	return nil
}

// readSets reads the sets and maps in the form of nft's JSON.
func (l *listing) readSets(list *objects) error {
	sets, err := nfnetlink.Sets(numberOf(l.table.family), l.table.name)
	if err != nil {
		return err //nolint:wrapcheck // it says what it listed
	}
	for i := range sets {
		set := &sets[i]
		object := setObject{Family: l.table.family, Table: l.table.name, Name: set.Name, Size: set.Size, elements: make([]*nft.Element, 0, len(set.Elements))}
		for _, column := range []struct {
			raw  *json.RawMessage
			text []string
		}{{&object.Type, set.Key}, {&object.Map, set.Value}, {&object.Flags, set.Flags}} {
			if *column.raw, err = json.Marshal(column.text); err != nil {
				return fmt.Errorf("set %s: %w", set.Name, err)
			}
		}
		for _, e := range set.Elements {
			object.elements = append(object.elements, &nft.Element{Match: e.Match, Value: e.Value, Owner: e.Comment})
		}
		if set.Value != nil {
			list.maps = append(list.maps, object)
		} else {
			list.sets = append(list.sets, object)
		}
	}
	return nil
}
