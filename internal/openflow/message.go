package openflow

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"weft.dev/weft/internal/openflow/wire"
)

// version15 is the number of OpenFlow 1.5 in messages.
const version15 = 6

// HeaderLen is the length of an OpenFlow message's header.
const HeaderLen = 8

// Message types (OpenFlow 1.5.1, 7.1.1).
const (
	MsgHello           = 0
	MsgError           = 1
	MsgEchoRequest     = 2
	MsgEchoReply       = 3
	MsgExperimenter    = 4
	MsgFeaturesRequest = 5
	MsgFeaturesReply   = 6
	MsgSetConfig       = 9
	MsgPacketIn        = 10
	MsgPortStatus      = 12
	MsgPacketOut       = 13
	MsgFlowMod         = 14
	MsgGroupMod        = 15
	MsgMultipart       = 18
	MsgMultipartReply  = 19
	MsgBarrierRequest  = 20
	MsgBarrierReply    = 21
	MsgSetAsync        = 28
	MsgRequestForward  = 32
	MsgBundleControl   = 33
	MsgBundleAdd       = 34
)

// Message is one OpenFlow message without its header.
type Message struct {
	Kind uint8
	XID  uint32
	Body []byte
}

// AppendWire appends the message with its header.
func (m Message) AppendWire(b []byte) []byte {
	b = append(b, version15, m.Kind)
	b = binary.BigEndian.AppendUint16(b, uint16(HeaderLen+len(m.Body))) //nolint:gosec // what is sent is checked against wire.MaxMessage
	return append(binary.BigEndian.AppendUint32(b, m.XID), m.Body...)
}

// Fits reports whether the message is not longer than an OpenFlow message can be.
func (m Message) Fits() bool { return HeaderLen+len(m.Body) <= wire.MaxMessage }

// ErrTooLong says that a message is longer than its length field can say.
var ErrTooLong = errors.New("longer than an OpenFlow message can be (64 KiB)")

// ErrVersion says that the switch does not speak OpenFlow 1.5 on this bridge.
var ErrVersion = errors.New("the bridge does not speak OpenFlow 1.5: add OpenFlow15 to its protocols")

// ReadMessage reads the next message. Only hello and error may have another version.
func ReadMessage(r *bufio.Reader) (Message, error) {
	var h [HeaderLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return Message{}, fmt.Errorf("read message header: %w", err)
	}
	m := Message{Kind: h[1], XID: binary.BigEndian.Uint32(h[4:])}
	n := int(binary.BigEndian.Uint16(h[2:]))
	if n < HeaderLen {
		return m, wire.Malformed("message header")
	}
	if h[0] != version15 && m.Kind != MsgHello && m.Kind != MsgError {
		return m, fmt.Errorf("message of version %d: %w", h[0], ErrVersion)
	}
	m.Body = make([]byte, n-HeaderLen)
	if _, err := io.ReadFull(r, m.Body); err != nil {
		return m, fmt.Errorf("read message: %w", err)
	}
	if m.Kind == MsgHello && !helloSpeaks15(h[0], m.Body) {
		return m, ErrVersion
	}
	return m, nil
}

// Hello offers version 1.5 only.
func Hello() Message {
	return Message{MsgHello, 1, []byte{0, 1, 0, 8, 0, 0, 0, 1 << version15}}
}

// helloSpeaks15 reads a hello's version bitmap. Without a bitmap, the hello's own version is the highest one supported.
func helloSpeaks15(version uint8, body []byte) bool {
	for len(body) >= 8 {
		kind, value, rest, err := wire.NextProperty(body)
		if err != nil {
			break
		}
		if kind == 1 && len(value) >= 4 {
			return binary.BigEndian.Uint32(value)&(1<<version15) != 0
		}
		body = rest
	}
	return version >= version15
}
