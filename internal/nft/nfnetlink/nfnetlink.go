// Package nfnetlink reads nftables' generation, tables, chains and rules by netlink. nft(8) prints the same, but each listing is a process, which takes
// milliseconds of processor time.
//
// Its functions read the network namespace of the calling thread. They need CAP_NET_ADMIN there, as nft does.
package nfnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// From linux/netfilter/nf_tables.h; golang.org/x/sys/unix does not have them.
const (
	attributeTable       = 1  // NFTA_RULE_TABLE, NFTA_SET_TABLE, NFTA_TABLE_NAME
	attributeTableHandle = 4  // NFTA_TABLE_HANDLE
	attributeChainFlags  = 10 // NFTA_CHAIN_FLAGS
	attributeHookDevs    = 4  // NFTA_HOOK_DEVS
	attributeDeviceName  = 1  // NFTA_DEVICE_NAME
	flagBinding          = 4  // NFT_CHAIN_BINDING
	policyDrop           = 0  // NF_DROP of linux/netfilter.h
)

const (
	headerSize = 4 // struct nfgenmsg of linux/netfilter/nfnetlink.h
	numberSize = 4
)

// dumpAttempts limits how often an interrupted dump is repeated. The last result is used as it is: what it missed was changing anyway, and
// is reported by an event.
const dumpAttempts = 10

// Chain is a chain as the kernel has it.
type Chain struct {
	// Family is an NFPROTO number.
	Family byte
	Table  string
	Name   string
	// Hook is nil if the chain is a regular one.
	Hook *Hook
}

// Hook is what only a base chain has.
type Hook struct {
	// Type is "filter", "nat" or "route".
	Type string
	// Number is the hook's, whose meaning depends on the family.
	Number   uint32
	Priority int
	// Drop reports that the chain's policy is drop.
	Drop bool
	// Devices are those of an ingress or egress chain.
	Devices []string
}

// Generation returns the generation of nftables, which every transaction increments by one.
func Generation() (uint32, error) {
	messages, err := request(question{kind: unix.NFT_MSG_GETGEN, answer: unix.NFT_MSG_NEWGEN}, 0)
	if err != nil {
		return 0, fmt.Errorf("asking for the generation of nftables: %w", err)
	}
	for _, message := range messages {
		attrs, err := Attributes(message)
		if id, ok := number(attrs[unix.NFTA_GEN_ID]); ok && err == nil {
			return id, nil
		}
	}
	return 0, errors.New("asking for the generation of nftables: the answer has no generation")
}

// Port returns the port of a netlink socket, by which events name the sender of a transaction.
func Port(socket syscall.Conn) (uint32, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("netlink socket: %w", err)
	}
	var address unix.Sockaddr
	controlErr := raw.Control(func(fd uintptr) { address, err = unix.Getsockname(int(fd)) })
	if err := errors.Join(controlErr, err); err != nil {
		return 0, fmt.Errorf("port of the netlink socket: %w", err)
	}
	bound, ok := address.(*unix.SockaddrNetlink)
	if !ok {
		return 0, fmt.Errorf("port of the netlink socket: %w: a socket of type %T", unix.EINVAL, address)
	}
	return bound.Pid, nil
}

// Table is a table.
type Table struct {
	// Family is an NFPROTO number.
	Family byte
	Name   string
	// Dormant reports that the table's chains are not attached to their hooks (flag "dormant"): no packet traverses them.
	Dormant bool
}

// Tables returns all tables.
func Tables() ([]Table, error) {
	messages, err := dump(question{kind: unix.NFT_MSG_GETTABLE, answer: unix.NFT_MSG_NEWTABLE})
	if err != nil {
		return nil, fmt.Errorf("listing the tables of nftables: %w", err)
	}
	tables := make([]Table, 0, len(messages))
	for _, message := range messages {
		attrs, err := Attributes(message)
		if err != nil {
			return nil, fmt.Errorf("listing the tables of nftables: %w", err)
		}
		flags, _ := number(attrs[unix.NFTA_TABLE_FLAGS])
		tables = append(tables, Table{
			Family: message[0], Name: unix.ByteSliceToString(attrs[unix.NFTA_TABLE_NAME]), Dormant: flags&unix.NFT_TABLE_F_DORMANT != 0,
		})
	}
	return tables, nil
}

// Chains returns all chains of a family's tables, without the nameless ones that rules contain, like "nft list chains". Family NFPROTO_UNSPEC
// means all families.
func Chains(family byte) ([]Chain, error) {
	messages, err := dump(question{kind: unix.NFT_MSG_GETCHAIN, answer: unix.NFT_MSG_NEWCHAIN, family: family})
	if err != nil {
		return nil, fmt.Errorf("listing the chains of nftables: %w", err)
	}
	chains := make([]Chain, 0, len(messages))
	for _, message := range messages {
		chain, binding, err := parseChain(message)
		if err != nil {
			return nil, fmt.Errorf("listing the chains of nftables: %w", err)
		}
		if !binding {
			chains = append(chains, chain)
		}
	}
	return chains, nil
}

// question is a request for objects of a kind: of one table, or of all.
type question struct {
	kind, answer uint16
	family       byte
	table        string // "": all tables
}

// dump lists all objects of a kind. After several interruptions, it returns the last listing.
func dump(q question) ([][]byte, error) {
	messages, err := request(q, unix.NLM_F_DUMP)
	for attempt := 1; errors.Is(err, nl.ErrDumpInterrupted) && attempt < dumpAttempts; attempt++ {
		messages, err = request(q, unix.NLM_F_DUMP)
	}
	if errors.Is(err, nl.ErrDumpInterrupted) {
		err = nil
	}
	return messages, err
}

func request(q question, flags int) ([][]byte, error) {
	const subsystem = unix.NFNL_SUBSYS_NFTABLES << 8
	r := nl.NewNetlinkRequest(subsystem|int(q.kind), flags)
	data := []byte{q.family, unix.NFNETLINK_V0, 0, 0}
	if q.table != "" {
		data = append(data, nl.NewRtAttr(attributeTable, nl.ZeroTerminated(q.table)).Serialize()...)
	}
	r.AddRawData(data)
	return r.Execute(unix.NETLINK_NETFILTER, subsystem|q.answer)
}

// parseChain reads one chain; binding reports that a rule contains it.
func parseChain(message []byte) (chain Chain, binding bool, err error) {
	attrs, err := Attributes(message)
	if err != nil {
		return Chain{}, false, err
	}
	flags, _ := number(attrs[attributeChainFlags])
	chain = Chain{
		Family: message[0], Table: unix.ByteSliceToString(attrs[unix.NFTA_CHAIN_TABLE]), Name: unix.ByteSliceToString(attrs[unix.NFTA_CHAIN_NAME]),
	}
	if raw, base := attrs[unix.NFTA_CHAIN_HOOK]; base {
		if chain.Hook, err = parseHook(raw); err != nil {
			return Chain{}, false, err
		}
		chain.Hook.Type = unix.ByteSliceToString(attrs[unix.NFTA_CHAIN_TYPE])
		policy, known := number(attrs[unix.NFTA_CHAIN_POLICY])
		chain.Hook.Drop = known && policy == policyDrop
	}
	return chain, flags&flagBinding != 0, nil
}

func parseHook(raw []byte) (*Hook, error) {
	hook := &Hook{}
	var single, all []byte
	err := each(raw, func(kind uint16, value []byte) {
		switch kind {
		case unix.NFTA_HOOK_HOOKNUM:
			hook.Number, _ = number(value)
		case unix.NFTA_HOOK_PRIORITY:
			priority, _ := number(value)
			hook.Priority = int(int32(priority)) //nolint:gosec // the kernel's type
		case unix.NFTA_HOOK_DEV: // the only form before Linux 5.5, and still there beside the other if there is one device
			single = value
		case attributeHookDevs:
			all = value
		}
	})
	if err != nil {
		return nil, err
	}
	err = each(all, func(kind uint16, value []byte) {
		if kind == attributeDeviceName {
			hook.Devices = append(hook.Devices, unix.ByteSliceToString(value))
		}
	})
	if len(all) == 0 && len(single) > 0 {
		hook.Devices = []string{unix.ByteSliceToString(single)}
	}
	return hook, err
}

// number returns a 32-bit number of an attribute.
func number(value []byte) (n uint32, ok bool) {
	if len(value) != numberSize {
		return 0, false
	}
	return binary.BigEndian.Uint32(value), true
}

// Attributes returns a message's attributes by type. It checks every length.
func Attributes(message []byte) (map[uint16][]byte, error) {
	if len(message) < headerSize {
		return nil, unix.EBADMSG
	}
	attrs := map[uint16][]byte{}
	err := each(message[headerSize:], func(kind uint16, value []byte) { attrs[kind] = value })
	if err != nil {
		return nil, err
	}
	return attrs, nil
}

// each calls take with all attributes. It checks every length.
func each(raw []byte, take func(kind uint16, value []byte)) error {
	for len(raw) >= unix.SizeofNlAttr {
		length := int(binary.NativeEndian.Uint16(raw))
		kind := binary.NativeEndian.Uint16(raw[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		if length < unix.SizeofNlAttr || length > len(raw) {
			return unix.EBADMSG
		}
		take(kind, raw[unix.SizeofNlAttr:length])
		aligned := (length + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1)
		raw = raw[min(aligned, len(raw)):]
	}
	return nil
}
