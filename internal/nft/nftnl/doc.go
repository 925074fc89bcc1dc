// Package nftnl is the engine for one nftables table that is programmed by netlink: the chains, rules, sets, verdict maps and elements of
// pods and policies. Package nft programs the rules of the node with nft(8), which suits few rules that rarely change.
//
//	engine, err := nftnl.NewEngine(nftnl.Options{Family: nftnl.FamilyInet, Table: "weft_policy"})
//	loop := reconcile.NewLoop[nftnl.Key, nftnl.Item](engine, ...)
//	loop.Set(map[reconcile.Owner]map[nftnl.Key]nftnl.Item{"pod/ns/a": nftnl.Items(
//		&nftnl.Element{Set: "ingress", Match: []nftnl.Value{nftnl.Addr(pod)}, Verdict: nftnl.Goto("set-1")},
//	)})
//
// The desired state consists of plain values ([Chain], [Rules], [Set], [Element]) under a [Key]. [Engine] and [Fake] both implement
// reconcile.Engine[Key, Item]; the Fake also evaluates packets ([Fake.Judge]), so that a compiler's output is tested without a kernel.
//
// # What the engine manages
//
// The whole table. Commit creates it if it is missing; content that is not desired is read, and so removed by a reconcile.Loop. Other
// tables are neither read nor changed.
//
// # Commit
//
// A commit is one kernel transaction that contains the change and nothing else: elements are added and removed one by one, the rules of a
// chain are replaced as a whole. The table is not listed after a commit. If the kernel rejects the transaction, the engine reads the table
// once, builds the transaction again from what it has read, and returns the error of the second rejection; then nothing of the change is in
// effect.
//
// # Read
//
// Rules are compared as the kernel's expressions, without counters, so that no text form matters and any change of a rule is found.
// [Engine.Watch] reports other programs' transactions on the table; the engine's own are recognised by the port of its socket, which is
// unique in the namespace at any time.
package nftnl
