package ruleset

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"sigs.k8s.io/knftables"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nfnetlink"
	"weft.dev/weft/internal/nft/nftcli"
)

// record writes the records of changed chains. It reports whether there was no other transaction since the generation before the commit, so
// that the kernel has the rules that were committed; otherwise it writes none.
func (e *Engine) record(rules changedRules, before uint32) (bool, error) {
	digests := map[tableKey]nfnetlink.Digests{}
	err := e.namespace.Inside(func() (err error) {
		for table := range rules {
			if digests[table], err = nfnetlink.Rules(numberOf(table.family), table.name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	after, err := e.namespace.Generation()
	if err != nil || after != nextGeneration(before) {
		return false, err
	}
	for table, chains := range rules {
		next := maps.Clone(e.records[table])
		if next == nil {
			next = map[string]record{}
		}
		for chain, rules := range chains {
			delete(next, recordKey(chain))
			if rules != nil {
				next[recordKey(chain)] = record{desired: rules.Digest(), rules: digests[table].Of(chain)}
			}
		}
		e.records[table] = next
		if err := e.writeRecords(table, next); err != nil {
			return false, err
		}
	}
	return true, nil
}

// holds reports whether the kernel has the recorded rules of a chain now. Another program may have changed them since the last Read.
func (r record) holds(namespace nftcli.Namespace, chain nft.Key) bool {
	var rules nfnetlink.Digests
	err := namespace.Inside(func() (err error) {
		rules, err = nfnetlink.Rules(numberOf(chain.Family), chain.Table)
		return err
	})
	return err == nil && r.rules == rules.Of(chain.Name)
}

// stateSet is the set of a table's records.
func stateSet(table tableKey) *knftables.Set {
	return &knftables.Set{Family: knftables.Family(table.family), Table: table.name, Name: nft.StateSet, Type: "ipv6_addr"}
}

// writeRecords replaces the records of a table in one transaction.
func (e *Engine) writeRecords(table tableKey, records map[string]record) error {
	set := &nftables.Set{
		Table: &nftables.Table{Name: table.name, Family: nftables.TableFamily(numberOf(table.family))}, Name: nft.StateSet, KeyType: nftables.TypeIP6Addr,
	}
	var elements []nftables.SetElement
	for _, key := range slices.Sorted(maps.Keys(records)) {
		address, err := netip.ParseAddr(key)
		if err != nil {
			return fmt.Errorf("record %s: %w", key, err)
		}
		elements = append(elements, nftables.SetElement{Key: address.AsSlice(), Comment: records[key].String()})
	}
	return e.own.transact(e.namespace, func(began **ownChange) error {
		return e.namespace.Inside(func() error {
			conn, err := nftables.New(nftables.WithSockOptions(func(socket *netlink.Conn) error {
				port, err := nfnetlink.Port(socket)
				if err == nil {
					e.own.mutex.Lock()
					defer e.own.mutex.Unlock()
					*began = e.own.began(port)
				}
				return err
			}))
			if err != nil {
				return fmt.Errorf("nftables socket: %w", err)
			}
			conn.FlushSet(set)
			if len(elements) > 0 {
				err = conn.SetAddElements(set, elements)
			}
			if err == nil {
				err = conn.Flush()
			}
			if err != nil {
				return fmt.Errorf("records of table %s %s: %w", table.family, table.name, err)
			}
			return nil
		})
	})
}
