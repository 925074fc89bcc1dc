// Package ruleset is the engine for the items of package nft: it programs Weft's tables in the ruleset of a network namespace, and marked
// rules in other programs' base chains, with nft(8).
//
// # How a changed rule is detected
//
// nft prints rules in its own normal form, so desired text cannot be compared with a listing. But what the kernel has at two times can be
// compared. After each commit the engine reads the rules of the changed chains by netlink. For each chain it records a digest of the desired
// rules and a digest of the kernel's, in a set named [nft.StateSet] in the table itself. Read compares: a chain whose rules have the recorded
// digest contains the recorded rules. Any other chain was changed by another program; it reads as altered, which equals nothing. The record is
// in the kernel with the rules, so a restarted process can compare as well. A crash between the commit and the record, or another version of
// Linux that describes rules differently, costs one rewrite of the chain with the rules it has; it never hides a change. The digests have the
// boot and the handles of the table and the rules, and ignore counters.
//
// # Atomicity
//
// A commit is one transaction of nft: it is made completely or not at all, and no packet sees an intermediate state. A second transaction, by
// netlink, writes the record.
package ruleset
