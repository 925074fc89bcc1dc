package nftnl

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"github.com/google/nftables/expr"
)

// register returns the number of the register that starts at a slot of 4 bytes, as the kernel reports it (nft_dump_register in
// net/netfilter/nf_tables_api.c).
func register(slot int) uint32 {
	if slot%4 == 0 {
		return 1 + uint32(slot/4)
	}
	return 8 + uint32(slot)
}

// program collects the expressions of a rule.
type program struct {
	family Family
	list   []expr.Any
	// ether is the packet's ethernet type if known, else 0.
	ether uint16
}

func (p *program) add(e ...expr.Any) { p.list = append(p.list, e...) }

// require adds the condition that a field's protocol implies.
func (p *program) require(ether uint16) {
	if ether == 0 || ether == p.ether {
		return
	}
	p.ether = ether
	if p.family == FamilyInet {
		number := byte(nfIPv4)
		if ether == etherIPv6 {
			number = nfIPv6
		}
		p.add(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{number}})
		return
	}
	p.add(&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, ether)})
}

// load loads fields into consecutive registers.
func (p *program) load(fields []Field) {
	for _, field := range fields {
		p.require(field.info().ether)
	}
	slot := 0
	for _, field := range fields {
		info := field.info()
		p.add(info.load(register(slot)))
		slot += padded(info.size) / 4
	}
}

func (p *program) match(m Match) {
	p.load(m.Fields)
	equal := expr.CmpOpEq
	if m.Inverted {
		equal = expr.CmpOpNeq
	}
	switch {
	case m.Set != "":
		p.add(&expr.Lookup{SourceRegister: 1, SetName: m.Set, Invert: m.Inverted})
	case m.Mask != 0:
		zero, mask := make([]byte, 4), native(m.Mask)
		if m.Fields[0] == TCPFlags {
			zero, mask = make([]byte, 1), []byte{byte(m.Mask)}
		}
		p.add(&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(mask)), Mask: mask, Xor: zero}) //nolint:gosec // 1 or 4
		if m.Inverted {
			p.add(&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: zero})
		} else {
			p.add(&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: zero})
		}
	case m.Value.From != m.Value.To:
		p.add(&expr.Range{Op: equal, Register: 1, FromData: []byte(m.Value.From), ToData: []byte(m.Value.To)})
	default:
		p.add(&expr.Cmp{Op: equal, Register: 1, Data: []byte(m.Value.From)})
	}
}

func native(value uint32) []byte { return binary.NativeEndian.AppendUint32(nil, value) }

// expressions compiles the rule.
func (r *Rule) expressions(family Family) []expr.Any {
	p := &program{family: family}
	for _, match := range r.Matches {
		p.match(match)
	}
	if r.Counter {
		p.add(&expr.Counter{})
	}
	if r.MarkMask != 0 {
		p.add(&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native(^r.MarkMask), Xor: native(r.Mark)},
			&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1})
	}
	if r.Map != "" {
		p.load(r.MapFields)
		p.add(&expr.Lookup{SourceRegister: 1, IsDestRegSet: true, SetName: r.Map})
	}
	if r.Verdict != (Verdict{}) {
		p.add(r.Verdict.expression())
	}
	return p.list
}

func (v Verdict) expression() *expr.Verdict {
	e := &expr.Verdict{Chain: v.Chain}
	switch v.Kind {
	case VerdictAccept:
		e.Kind = expr.VerdictAccept
	case VerdictDrop:
		e.Kind = expr.VerdictDrop
	case VerdictReturn:
		e.Kind = expr.VerdictReturn
	case VerdictJump:
		e.Kind = expr.VerdictJump
	case VerdictGoto:
		e.Kind = expr.VerdictGoto
	}
	return e
}

// verdictOf is the inverse of Verdict.expression.
func verdictOf(kind expr.VerdictKind, chain string) Verdict {
	switch kind {
	case expr.VerdictAccept:
		return Accept()
	case expr.VerdictDrop:
		return Drop()
	case expr.VerdictReturn:
		return Return()
	case expr.VerdictJump:
		return Jump(chain)
	case expr.VerdictGoto:
		return Goto(chain)
	default:
		return Verdict{Kind: "other"}
	}
}

// digest is a digest of a rule: its expressions in the kernel's format, without counters and numbers that the kernel assigns.
func digest(family Family, list []expr.Any, owner string) string {
	hash := sha256.New()
	for _, e := range list {
		switch typed := e.(type) {
		case *expr.Counter:
			e = &expr.Counter{}
		case *expr.Lookup:
			plain := *typed
			plain.SetID = 0
			e = &plain
		}
		data, err := expr.Marshal(byte(familyOf(family)), e)
		if err != nil {
			data = []byte(err.Error()) // not an expression of this engine; the digest equals none of its own
		}
		hash.Write(binary.BigEndian.AppendUint32(nil, uint32(len(data))))
		hash.Write(data)
	}
	hash.Write([]byte(owner))
	return hex.EncodeToString(hash.Sum(nil)[:16])
}
