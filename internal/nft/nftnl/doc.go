// Package nftnl is the engine for one nftables table that is programmed by netlink: the chains, rules, sets, verdict maps
// and elements of pods and policies. Package nft programs the rules of the node by nft(8); that is for few and rarely
// changed rules.
//
//	engine, err := nftnl.NewEngine(nftnl.Options{Family: nftnl.FamilyInet, Table: "weft_policy"})
//	loop := reconcile.NewLoop[nftnl.Key, nftnl.Item](engine, ...)
//	loop.Set(map[reconcile.Owner]map[nftnl.Key]nftnl.Item{"pod/ns/a": nftnl.Items(
//		&nftnl.Element{Set: "ingress", Match: []nftnl.Value{nftnl.Addr(pod)}, Verdict: nftnl.Goto("set-1")},
//	)})
//
// Desired state is plain values ([Chain], [Rules], [Set], [Element]) under a [Key]. [Engine] and [Fake] both implement
// reconcile.Engine[Key, Item]; the Fake also judges packets ([Fake.Judge]), so that a compiler's output is tested
// without a kernel.
//
// # What is in the engine's care
//
// The whole table. Commit makes it when it is missing; what is in it and is not desired is read, and so removed by a
// reconcile.Loop. Other tables are neither read nor changed.
//
// # Commit
//
// A commit is one transaction of the kernel that contains the change and nothing else: elements are added and removed
// one by one, the rules of a chain are replaced as a whole. The table is not listed after a commit. If the kernel refuses
// the transaction, the engine reads the table once, makes the transaction anew from what it has read, and returns the
// error of the second refusal; nothing of the change is in effect then.
//
// # Read
//
// Rules are compared as the expressions that the kernel has, without counters, so that no text form matters and any change
// of a rule is found. [Engine.Watch] reports transactions of others on the table; the engine's own are recognised by the
// port of its socket, which no other socket of the namespace can have at the same time.
package nftnl
