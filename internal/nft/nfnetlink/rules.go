package nfnetlink

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"

	"golang.org/x/sys/unix"
)

// DigestSize is the number of hexadecimal digits of a digest of rules.
const DigestSize = 32

// counter is the name of the expression whose content packets change.
const counter = "counter"

// Digests are the digests of the rules of a table's chains. Two digests of a chain are equal if no rule was added, replaced or deleted between
// them: besides its content, a rule has a handle, which no later rule of the table gets. A table that is deleted and created again begins with
// the same handles, and sets that its rules contain may have other elements: so the table's own handle counts too, and the boot, because it
// begins again after a reboot. Counters do not change a digest.
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
	instance, err := instanceOf(family, table)
	if err != nil {
		return nil, fmt.Errorf("handle of table %s: %w", table, err)
	}
	messages, err := dump(question{unix.NFT_MSG_GETRULE, unix.NFT_MSG_NEWRULE, family, table})
	if err != nil {
		return nil, fmt.Errorf("listing the rules of table %s: %w", table, err)
	}
	digests := Digests{}
	for _, message := range messages {
		attrs, err := Attributes(message)
		if err == nil {
			err = digests.add(instance, attrs)
		}
		if err != nil {
			return nil, fmt.Errorf("listing the rules of table %s: %w", table, err)
		}
	}
	return digests, nil
}

// instanceOf returns what no table has that is created later: the boot and the table's handle. A table that does not exist has none.
func instanceOf(family byte, table string) ([]byte, error) {
	messages, err := request(question{unix.NFT_MSG_GETTABLE, unix.NFT_MSG_NEWTABLE, family, table}, 0)
	if errors.Is(err, unix.ENOENT) || err == nil && len(messages) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	attrs, err := Attributes(messages[0])
	if err != nil {
		return nil, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id") // proc(5)
	if err != nil {
		return nil, fmt.Errorf("id of the boot: %w", err)
	}
	return append(boot, attrs[attributeTableHandle]...), nil
}

// add adds a rule of an instance of the table to the digest of its chain.
func (d Digests) add(instance []byte, rule map[uint16][]byte) error {
	chain := unix.ByteSliceToString(rule[unix.NFTA_RULE_CHAIN])
	if d[chain] == nil {
		d[chain] = sha256.New()
		d[chain].Write(instance)
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
