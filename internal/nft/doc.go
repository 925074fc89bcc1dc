// Package nft is the engine for nftables: Weft's own tables, and the few rules that it has to place in other
// people's base chains so that they let its traffic pass.
//
// The engine knows mechanism and no policy. Desired state comes as plain values ([Table], [Chain], [ChainRules], [Set],
// [Map], [Element], [ForeignJump]) keyed by [Key]; [Engine] and [Fake] both implement reconcile.Engine[Key, Item].
//
// # How a changed rule is found
//
// nft prints rules in its own normal form, so desired text cannot be compared with what is listed. What can be compared
// is one listing with another: after each commit the engine lists the tables it touched, and records for each chain a
// digest of the desired rules and a digest of the listing, in a set named [StateSet] in the table itself. Read lists
// the table and compares: a chain whose listing has the recorded digest holds the recorded rules, one that has not was
// changed by somebody, whatever the change was, and reads as altered, which equals nothing. The record is
// in the kernel with the rules, so a restarted process compares as well as the one that wrote it. A crash between
// the commit and the record, or another version of nft that prints differently, costs one rewrite of the
// chain with the rules it has; it never hides a change. The digests leave out handles, counters and the order of anonymous
// sets.
//
// # Atomicity
//
// A commit is one transaction of nft: all of it or nothing, and no packet sees a state between. The record follows in a
// second transaction.
package nft
