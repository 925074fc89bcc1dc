package nfnetlink

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"

	"golang.org/x/sys/unix"
)

// DigestSize is the number of hexadecimal digits of a digest of rules.
const DigestSize = 32

// counter is the name of the expression whose content packets change.
const counter = "counter"

// Digests are the digests of the rules of a table's chains. Two digests of a chain are equal if no rule was added, replaced or deleted between
// them: besides its content, a rule has a handle, which no later rule of the table gets. Counters do not change a digest.
type Digests map[string]hash.Hash

// Of returns the digest of a chain's rules.
func (d Digests) Of(chain string) string {
	rules := d[chain]
	if rules == nil {
		rules = sha256.New()
	}
	return hex.EncodeToString(rules.Sum(nil))[:DigestSize]
}

// Any reports whether a chain has rules.
func (d Digests) Any(chain string) bool { return d[chain] != nil }

// Rules returns the digests of all chains of a table. A table that does not exist has no rules.
func Rules(family byte, table string) (Digests, error) {
	messages, err := dump(question{unix.NFT_MSG_GETRULE, unix.NFT_MSG_NEWRULE, family, table})
	if err != nil {
		return nil, fmt.Errorf("listing the rules of table %s: %w", table, err)
	}
	digests := Digests{}
	for _, message := range messages {
		attrs, err := Attributes(message)
		if err == nil {
			err = digests.add(attrs)
		}
		if err != nil {
			return nil, fmt.Errorf("listing the rules of table %s: %w", table, err)
		}
	}
	return digests, nil
}

// add adds a rule to the digest of its chain.
func (d Digests) add(rule map[uint16][]byte) error {
	chain := unix.ByteSliceToString(rule[unix.NFTA_RULE_CHAIN])
	if d[chain] == nil {
		d[chain] = sha256.New()
	}
	word := func(value []byte) {
		_, _ = fmt.Fprintf(d[chain], "%d:", len(value)) // a hash takes everything
		d[chain].Write(value)
	}
	word(rule[unix.NFTA_RULE_HANDLE])
	word(rule[unix.NFTA_RULE_USERDATA])
	var wrong error
	err := each(rule[unix.NFTA_RULE_EXPRESSIONS], func(_ uint16, expression []byte) {
		var name, content []byte
		err := each(expression, func(kind uint16, value []byte) {
			switch kind {
			case unix.NFTA_EXPR_NAME:
				name = value
			case unix.NFTA_EXPR_DATA:
				content = value
			}
		})
		if err != nil {
			wrong = err
		}
		if word(name); unix.ByteSliceToString(name) != counter {
			word(content)
		}
	})
	if err == nil {
		err = wrong
	}
	return err
}

// DynamicSets returns the sets and maps of a table to which rules add elements (flag "dynamic"). A table that does not exist has none.
func DynamicSets(family byte, table string) (map[string]bool, error) {
	messages, err := dump(question{unix.NFT_MSG_GETSET, unix.NFT_MSG_NEWSET, family, table})
	if err != nil {
		return nil, fmt.Errorf("listing the sets of table %s: %w", table, err)
	}
	dynamic := map[string]bool{}
	for _, message := range messages {
		attrs, err := Attributes(message)
		if err != nil {
			return nil, fmt.Errorf("listing the sets of table %s: %w", table, err)
		}
		if flags, _ := number(attrs[unix.NFTA_SET_FLAGS]); flags&unix.NFT_SET_EVAL != 0 {
			dynamic[unix.ByteSliceToString(attrs[unix.NFTA_SET_NAME])] = true
		}
	}
	return dynamic, nil
}
