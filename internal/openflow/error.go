package openflow

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Error is a switch's refusal of a message.
type Error struct {
	// Type and Code are OpenFlow's numbers (OpenFlow 1.5.1, 7.5.4). For an error of an experimenter, Type is 0xffff
	// and Code the experimenter's own type.
	Type, Code uint16
	// XID is that of the refused message.
	XID uint32
	// Of is the refused flow or group, or the name of the request. It may be empty.
	Of string
}

// Error says what was refused, and the reason by its name in the specification.
func (e *Error) Error() string {
	if e.Of == "" {
		return "switch refused a message: " + e.Name()
	}
	return fmt.Sprintf("switch refused %s: %s", e.Of, e.Name())
}

// Name is the error's name in the specification, such as OFPBMC_BAD_PREREQ.
func (e *Error) Name() string {
	if e.Type == errExperimenter {
		if i := slices.IndexFunc(niciraErrors, func(n niciraError) bool { return n.code == e.Code }); i >= 0 {
			return niciraErrors[i].name
		}
		return fmt.Sprintf("experimenter error %d", e.Code)
	}
	i := slices.IndexFunc(errorTypes, func(t errorType) bool { return t.number == e.Type })
	if i < 0 {
		return fmt.Sprintf("error type %d code %d", e.Type, e.Code)
	}
	if int(e.Code) >= len(errorTypes[i].codes) {
		return fmt.Sprintf("%s code %d", errorTypes[i].prefix, e.Code)
	}
	return errorTypes[i].prefix + "_" + errorTypes[i].codes[e.Code]
}

const errExperimenter = 0xffff

type errorType struct {
	number uint16
	prefix string
	codes  []string
}

type niciraError struct {
	code uint16
	name string
}

//nolint:gochecknoglobals // constant tables of OpenFlow 1.5.1, 7.5.4, and of Open vSwitch's extensions
var (
	errorTypes = []errorType{
		{0, "OFPHFC", []string{"INCOMPATIBLE", "EPERM"}},
		{1, "OFPBRC", []string{
			"BAD_VERSION", "BAD_TYPE", "BAD_MULTIPART", "BAD_EXPERIMENTER", "BAD_EXP_TYPE", "EPERM", "BAD_LEN", "BUFFER_EMPTY",
			"BUFFER_UNKNOWN", "BAD_TABLE_ID", "IS_SLAVE", "BAD_PORT", "BAD_PACKET", "MULTIPART_BUFFER_OVERFLOW",
			"MULTIPART_REQUEST_TIMEOUT", "MULTIPART_REPLY_TIMEOUT", "MULTIPART_BAD_SCHED", "PIPELINE_FIELDS_ONLY", "UNKNOWN",
		}},
		{2, "OFPBAC", []string{
			"BAD_TYPE", "BAD_LEN", "BAD_EXPERIMENTER", "BAD_EXP_TYPE", "BAD_OUT_PORT", "BAD_ARGUMENT", "EPERM", "TOO_MANY", "BAD_QUEUE",
			"BAD_OUT_GROUP", "MATCH_INCONSISTENT", "UNSUPPORTED_ORDER", "BAD_TAG", "BAD_SET_TYPE", "BAD_SET_LEN", "BAD_SET_ARGUMENT",
			"BAD_SET_MASK", "BAD_METER",
		}},
		{3, "OFPBIC", []string{
			"UNKNOWN_INST", "UNSUP_INST", "BAD_TABLE_ID", "UNSUP_METADATA", "UNSUP_METADATA_MASK", "BAD_EXPERIMENTER", "BAD_EXP_TYPE",
			"BAD_LEN", "EPERM", "DUP_INST",
		}},
		{4, "OFPBMC", []string{
			"BAD_TYPE", "BAD_LEN", "BAD_TAG", "BAD_DL_ADDR_MASK", "BAD_NW_ADDR_MASK", "BAD_WILDCARDS", "BAD_FIELD", "BAD_VALUE", "BAD_MASK",
			"BAD_PREREQ", "DUP_FIELD", "EPERM",
		}},
		{5, "OFPFMFC", []string{
			"UNKNOWN", "TABLE_FULL", "BAD_TABLE_ID", "OVERLAP", "EPERM", "BAD_TIMEOUT", "BAD_COMMAND", "BAD_FLAGS", "CANT_SYNC",
			"BAD_PRIORITY", "IS_SYNC",
		}},
		{6, "OFPGMFC", []string{
			"GROUP_EXISTS", "INVALID_GROUP", "WEIGHT_UNSUPPORTED", "OUT_OF_GROUPS", "OUT_OF_BUCKETS", "CHAINING_UNSUPPORTED",
			"WATCH_UNSUPPORTED", "LOOP", "UNKNOWN_GROUP", "CHAINED_GROUP", "BAD_TYPE", "BAD_COMMAND", "BAD_BUCKET", "BAD_WATCH", "EPERM",
			"UNKNOWN_BUCKET", "BUCKET_EXISTS",
		}},
		{7, "OFPPMFC", []string{"BAD_PORT", "BAD_HW_ADDR", "BAD_CONFIG", "BAD_ADVERTISE", "EPERM"}},
		{14, "OFPBPC", []string{"BAD_TYPE", "BAD_LEN", "BAD_VALUE", "TOO_MANY", "DUP_TYPE", "BAD_EXPERIMENTER", "BAD_EXP_TYPE", "BAD_EXP_VALUE", "EPERM"}},
		{16, "OFPMOFC", []string{"UNKNOWN", "MONITOR_EXISTS", "INVALID_MONITOR", "UNKNOWN_MONITOR", "BAD_COMMAND", "BAD_FLAGS", "BAD_TABLE_ID", "BAD_OUT"}},
		{17, "OFPBFC", []string{
			"UNKNOWN", "EPERM", "BAD_ID", "BUNDLE_EXIST", "BUNDLE_CLOSED", "OUT_OF_BUNDLES", "BAD_TYPE", "BAD_FLAGS", "MSG_BAD_LEN",
			"MSG_BAD_XID", "MSG_UNSUP", "MSG_CONFLICT", "MSG_TOO_MANY", "MSG_FAILED", "TIMEOUT", "BUNDLE_IN_PROGRESS",
			"SCHED_NOT_SUPPORTED", "SCHED_FUTURE", "SCHED_PAST",
		}},
	}
	niciraErrors = []niciraError{
		{2, "NXBRC_NXM_INVALID"},
		{3, "NXBRC_NXM_BAD_TYPE"},
		{4, "NXBRC_MUST_BE_ZERO"},
		{11, "NXBAC_MUST_BE_ZERO"},
		{12, "NXFMFC_HARDWARE"},
		{13, "NXFMFC_BAD_TABLE_ID"},
		{15, "NXBAC_BAD_CONJUNCTION"},
		{37, "NXFMFC_INVALID_TLV_FIELD"},
		{42, "NXBAC_CT_DATAPATH_SUPPORT"},
		{43, "NXBMC_CT_DATAPATH_SUPPORT"},
	}
)

// DecodeError reads the body of an error message.
func DecodeError(m Message) *Error {
	e := &Error{XID: m.XID}
	if len(m.Body) >= 4 {
		e.Type, e.Code = binary.BigEndian.Uint16(m.Body), binary.BigEndian.Uint16(m.Body[2:])
	}
	return e
}

// Message returns the error as a message.
func (e *Error) Message() Message {
	b := binary.BigEndian.AppendUint16(nil, e.Type)
	return Message{MsgError, e.XID, binary.BigEndian.AppendUint16(b, e.Code)}
}
