// Package nft describes nftables rulesets as plain values: what networks desire of Weft's own tables, and the few rules that Weft has to add
// to other programs' base chains so that they let its traffic pass.
//
// It contains no policy and runs no program. The desired state consists of items ([Table], [Chain], [ChainRules], [Set], [Map], [Element],
// [ForeignJump]) keyed by [Key]. Package ruleset has the engine that commits them with nft(8). The [Fake] is such an engine in memory; both
// implement reconcile.Engine[Key, Item], and nfttest is the suite that both pass.
//
// [Survey] is what an engine has found in other programs' chains, and [Open] the rules that let Weft's traffic pass. A [Drift] is what
// another program has changed.
package nft
