package nft_test

import (
	"testing"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nfttest"
	"weft.dev/weft/internal/reconcile"
)

func TestFakeConforms(t *testing.T) {
	nfttest.Run(t, func(*testing.T) nfttest.Subject {
		fake := nft.NewFake()
		fake.Unmanage(nfttest.Unmanaged())
		rules := &nft.ChainRules{
			Family: nft.FamilyInet, Table: nfttest.Table, Chain: nfttest.Unmanaged().Name,
			Rules: []nft.Rule{{Text: "ip daddr @admin-addrs drop"}},
		}
		set := &nft.Set{Family: nft.FamilyInet, Table: nfttest.Table, Name: "admin-addrs", Type: "ipv4_addr"}
		element := &nft.Element{Family: nft.FamilyInet, Table: nfttest.Table, Set: set.Name, Match: []string{"192.0.2.5"}}
		return nfttest.Subject{
			Administer: func(*testing.T) {
				for _, item := range []nft.Item{set, element, rules} {
					fake.Put(item)
				}
			},
			Administered: func(*testing.T) bool {
				return fake.Exists(set.Key()) && fake.Exists(element.Key()) && fake.Exists(rules.Key())
			},
			Engine:  fake,
			Restart: func() reconcile.Engine[nft.Key, nft.Item] { return fake },
			Tamper:  func(_ *testing.T, tamper nfttest.Tamper) { tamperFake(fake, tamper) },
		}
	})
}

func tamperFake(fake *nft.Fake, tamper nfttest.Tamper) {
	key := func(kind nft.Kind, name string) nft.Key {
		return nft.Key{Family: nft.FamilyInet, Table: nfttest.Table, Kind: kind, Name: name}
	}
	forward := key(nft.KindRules, "forward")
	more := func(rules []nft.Rule) []nft.Rule { return append(rules, nft.Rule{Text: "accept"}) }
	switch tamper {
	case nfttest.RuleEdited:
		fake.AlterRules(forward, func(rules []nft.Rule) []nft.Rule { rules[1].Text = "accept"; return rules })
	case nfttest.RuleInserted:
		fake.AlterRules(forward, more)
	case nfttest.RuleAppended:
		fake.AlterRules(key(nft.KindRules, "helper"), more)
	case nfttest.RuleRemoved:
		fake.AlterRules(forward, func(rules []nft.Rule) []nft.Rule { return rules[1:] })
	case nfttest.ChainFlushed:
		fake.AlterRules(forward, func([]nft.Rule) []nft.Rule { return nil })
	case nfttest.TableFlushed:
		for _, chain := range []string{"forward", "helper", "early"} {
			fake.AlterRules(key(nft.KindRules, chain), func([]nft.Rule) []nft.Rule { return nil })
		}
	case nfttest.TableDeleted:
		fake.Forget(key(nft.KindTable, ""))
	case nfttest.ElementAdded:
		fake.Put(&nft.Element{Family: nft.FamilyInet, Table: nfttest.Table, Set: "pods", Match: []string{"10.9.9.9"}})
	case nfttest.ElementRemoved:
		fake.Forget(key(nft.KindElement, "pods 10.128.0.2"))
	case nfttest.PolicyChanged:
		fake.Put(&nft.Chain{
			Family: nft.FamilyInet, Table: nfttest.Table, Name: "forward", Type: nft.TypeFilter, Hook: nft.HookForward, Priority: -5,
			Policy: nft.PolicyDrop,
		})
	case nfttest.ChainAdded:
		fake.Put(&nft.Chain{Family: nft.FamilyInet, Table: nfttest.Table, Name: "stray"})
	case nfttest.TableDormant:
		fake.Put(&nft.Table{Family: nft.FamilyInet, Name: nfttest.Table, Dormant: true})
	case nfttest.MapValueChanged:
		fake.Put(&nft.Element{
			Family: nft.FamilyInet, Table: nfttest.Table, Set: "verdicts", Match: []string{"10.128.0.2"}, Value: []string{"accept"}, Owner: "policy/b",
		})
	}
}
