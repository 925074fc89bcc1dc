package action

import (
	"encoding/binary"
	"net/netip"

	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/openflow/wire"
)

// Decode decodes a list of actions to the end of b. Unknown actions, and those in a form that this package does not write, become
// opaque. Only inconsistent lengths are an error.
func Decode(b []byte) (Actions, error) {
	var actions Actions
	for len(b) > 0 {
		raw, err := wire.SplitTLV(b, "action")
		if err != nil {
			return nil, err
		}
		b = b[len(raw):]
		actions = append(actions, decodeAction(raw))
	}
	return actions, nil
}

// decodeAction reads one whole action, at least 8 bytes.
func decodeAction(raw []byte) Action {
	var action Action
	if kind := binary.BigEndian.Uint16(raw); kind == actExperimenter {
		action = decodeNicira(raw)
	} else {
		action = decodeStandard(kind, raw)
	}
	if action == nil {
		return opaque{string(raw)}
	}
	return action
}

func decodeStandard(kind uint16, raw []byte) Action {
	short := len(raw) == 8
	arg := binary.BigEndian.Uint32(raw[4:])
	switch {
	case kind == actOutput && len(raw) == 16:
		port, maxLen := arg, binary.BigEndian.Uint16(raw[8:])
		if port != wire.PortController {
			maxLen = 0
		}
		return output{port, maxLen}
	case (kind == actGroup || kind == actMeter || kind == actSetQueue) && short:
		return number{kind, arg}
	case (kind == actPushVLAN || kind == actPushMPLS || kind == actPopMPLS) && short:
		return tag{kind, uint16(arg >> 16)} //nolint:gosec // the upper half
	case kind == actPopVLAN && short:
		return tag{kind: kind}
	case kind == actDecTTL && short:
		return DecTTL()
	case kind == actSetField:
		return decodeSetField(raw)
	case kind == actCopyField && len(raw) == 24:
		return decodeMove(raw)
	default:
		return nil
	}
}

func decodeSetField(raw []byte) Action {
	f, oxm, err := oxm.DecodeField(raw[4:])
	if err != nil || !f.Known() || wire.RoundUp8(4+len(oxm)) != len(raw) {
		return nil
	}
	return SetField(f)
}

func decodeMove(raw []byte) Action {
	bits := binary.BigEndian.Uint16(raw[4:])
	src, ok1 := oxm.DecodeSubfield(binary.BigEndian.Uint32(raw[12:]), binary.BigEndian.Uint16(raw[6:]), bits)
	dst, ok2 := oxm.DecodeSubfield(binary.BigEndian.Uint32(raw[16:]), binary.BigEndian.Uint16(raw[8:]), bits)
	if !ok1 || !ok2 {
		return nil
	}
	return move{src, dst}
}

func decodeNicira(raw []byte) Action {
	if len(raw) < 16 || binary.BigEndian.Uint32(raw[4:]) != wire.VendorNicira {
		return nil
	}
	body := raw[10:]
	switch subtype := binary.BigEndian.Uint16(raw[8:]); subtype {
	case nxResubmit, nxResubmitTable, nxResubmitCT:
		return decodeResubmit(subtype, body)
	case nxNote:
		return note{string(body)}
	case nxCTClear:
		return CTClear()
	case nxExit:
		return Exit()
	case nxOutputReg:
		return decodeOutputReg(body)
	case nxConjunction:
		return conjunction{binary.BigEndian.Uint32(body[2:]), body[0] + 1, body[1]}
	case nxCT:
		return decodeCT(body)
	case nxLearn, nxLearn2:
		return decodeLearn(subtype, body)
	case nxController, nxController2:
		return decodeController(subtype, body)
	case nxCheckPktLarger:
		return decodeCheckPktLarger(body)
	case nxClone:
		nested, err := Decode(body[6:])
		if err != nil {
			return nil
		}
		return clone{nested}
	default:
		return nil
	}
}

func decodeResubmit(subtype uint16, body []byte) Action {
	table := body[2]
	if subtype == nxResubmit {
		table = tableCurrent
	}
	return resubmit{resubmitPort(binary.BigEndian.Uint16(body)), table, subtype == nxResubmitCT}
}

func resubmitPort(p uint16) uint32 { return wire.WidenPort(p) }

func decodeOutputReg(body []byte) Action {
	if len(body) != 14 {
		return nil
	}
	src, ok := oxm.DecodePackedSubfield(binary.BigEndian.Uint32(body[2:]), binary.BigEndian.Uint16(body))
	if !ok {
		return nil
	}
	return outputReg{src, binary.BigEndian.Uint16(body[6:])}
}

func decodeCheckPktLarger(body []byte) Action {
	if len(body) != 14 {
		return nil
	}
	dst, ok := oxm.DecodeSubfield(binary.BigEndian.Uint32(body[4:]), binary.BigEndian.Uint16(body[2:]), 1)
	if !ok {
		return nil
	}
	return checkPktLarger{binary.BigEndian.Uint16(body), dst}
}

func decodeController(subtype uint16, body []byte) Action {
	a := controller{ControllerAction{MaxLen: 0xffff, Reason: ReasonAction}}
	if subtype == nxController {
		a.MaxLen, a.ID, a.Reason = binary.BigEndian.Uint16(body), binary.BigEndian.Uint16(body[2:]), body[4]
		return a
	}
	rest := body[6:]
	for len(rest) > 0 {
		kind, value, next, err := wire.NextProperty(rest)
		if err != nil {
			return nil
		}
		rest = next
		switch {
		case kind == controllerMaxLen && len(value) >= 2:
			a.MaxLen = binary.BigEndian.Uint16(value)
		case kind == controllerID && len(value) >= 2:
			a.ID = binary.BigEndian.Uint16(value)
		case kind == controllerReason && len(value) >= 1:
			a.Reason = value[0]
		case kind == controllerUserData:
			a.UserData = append([]byte(nil), value...)
		case kind == controllerPause:
			a.Pause = true
		default:
			return nil
		}
	}
	return a
}

func decodeCT(body []byte) Action {
	if len(body) < 14 {
		return nil
	}
	flags, header := binary.BigEndian.Uint16(body), binary.BigEndian.Uint32(body[2:])
	zone := binary.BigEndian.Uint16(body[6:])
	a := ct{CTAction{Commit: flags&ctFlagCommit != 0, Force: flags&ctFlagForce != 0, ALG: binary.BigEndian.Uint16(body[12:])}}
	if flags&^(ctFlagCommit|ctFlagForce) != 0 {
		return nil
	}
	if header == 0 {
		a.Zone = zone
	} else {
		src, ok := oxm.DecodePackedSubfield(header, zone)
		if !ok {
			return nil
		}
		a.ZoneField = &src
	}
	if table := body[8]; table != tableCurrent {
		a.Table = &table
	}
	nested := body[14:]
	if raw, err := wire.SplitTLV(nested, "nat"); err == nil && isNAT(raw) {
		if a.NAT = decodeNAT(raw); a.NAT == nil {
			return nil
		}
		nested = nested[len(raw):]
	}
	exec, err := Decode(nested)
	if err != nil {
		return nil
	}
	a.Exec = exec
	return a
}

func isNAT(raw []byte) bool {
	return len(raw) >= 16 && binary.BigEndian.Uint16(raw) == actExperimenter &&
		binary.BigEndian.Uint32(raw[4:]) == wire.VendorNicira && binary.BigEndian.Uint16(raw[8:]) == nxNAT
}

func decodeNAT(raw []byte) *NAT {
	flags, present := binary.BigEndian.Uint16(raw[12:]), binary.BigEndian.Uint16(raw[14:])
	n := &NAT{Kind: NATKind(flags & 3), Persistent: flags&natPersistent != 0, Hash: flags&natHash != 0, Random: flags&natRandom != 0}
	rest, ok := raw[16:], flags&^natKnown == 0
	take := func(bit uint16, length int) []byte {
		if present&bit == 0 || !ok {
			return nil
		}
		if len(rest) < length {
			ok = false
			return nil
		}
		value := rest[:length]
		rest = rest[length:]
		return value
	}
	address := func(a *netip.Addr, value []byte) {
		if value != nil {
			*a, _ = netip.AddrFromSlice(value)
		}
	}
	address(&n.Min, take(natRange4Min, 4))
	address(&n.Max, take(natRange4Max, 4))
	address(&n.Min, take(natRange6Min, 16))
	address(&n.Max, take(natRange6Max, 16))
	if v := take(natRangePort, 2); v != nil {
		n.PortMin = binary.BigEndian.Uint16(v)
	}
	if v := take(natRangePortTo, 2); v != nil {
		n.PortMax = binary.BigEndian.Uint16(v)
	}
	if !ok || (!n.Min.IsValid() && present != 0) {
		return nil
	}
	return n
}

func decodeLearn(subtype uint16, body []byte) Action {
	if len(body) < 22 {
		return nil
	}
	be := binary.BigEndian
	flags := be.Uint16(body[14:])
	a := learn{LearnSpec{
		IdleTimeout: be.Uint16(body), HardTimeout: be.Uint16(body[2:]), Priority: be.Uint16(body[4:]),
		Cookie: be.Uint64(body[6:]), Table: body[16],
		FinIdleTimeout: be.Uint16(body[18:]), FinHardTimeout: be.Uint16(body[20:]),
		SendFlowRemoved: flags&learnSendFlowRemoved != 0, DeleteLearned: flags&learnDeleteLearned != 0,
	}}
	rest := body[22:]
	if subtype == nxLearn2 {
		var ok bool
		if rest, ok = a.decodeResult(flags, rest); !ok {
			return nil
		}
	}
	for len(rest) >= 2 && be.Uint16(rest) != 0 {
		f, next, ok := decodeLearnField(rest)
		if !ok {
			return nil
		}
		a.Fields = append(a.Fields, f)
		rest = next
	}
	return a
}

func (a *learn) decodeResult(flags uint16, b []byte) ([]byte, bool) {
	if len(b) < 8 {
		return nil, false
	}
	a.Limit = binary.BigEndian.Uint32(b)
	offset := binary.BigEndian.Uint16(b[4:])
	b = b[8:]
	if flags&learnWriteResult == 0 {
		return b, true
	}
	if len(b) < 4 {
		return nil, false
	}
	result, ok := oxm.DecodeSubfield(binary.BigEndian.Uint32(b), offset, 1)
	a.Result = &result
	return b[4:], ok
}

func decodeLearnField(b []byte) (f LearnField, rest []byte, ok bool) {
	header := binary.BigEndian.Uint16(b)
	b = b[2:]
	bits := header & learnBitsMask
	f.dst, f.from = learnDst(header&(3<<11)), header&learnImmediate == 0
	if f.from {
		if f.src, b, ok = pullSubfield(b, bits); !ok {
			return f, nil, false
		}
	} else {
		n := 2 * ((int(bits) + 15) / 16)
		if n > 16 || len(b) < n || f.dst == learnOutput {
			return f, nil, false
		}
		f.value, b = wire.GetU128(b[:n]).And(wire.Ones(bits)), b[n:]
	}
	if f.dst == learnOutput {
		return f, b, true
	}
	f.to, b, ok = pullSubfield(b, bits)
	return f, b, ok && f.dst <= learnOutput
}

func pullSubfield(b []byte, bits uint16) (oxm.Subfield, []byte, bool) {
	if len(b) < 6 {
		return oxm.Subfield{}, nil, false
	}
	s, ok := oxm.DecodeSubfield(binary.BigEndian.Uint32(b), binary.BigEndian.Uint16(b[4:]), bits)
	return s, b[6:], ok
}
