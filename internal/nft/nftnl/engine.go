package nftnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/nft/nfnetlink"
	"weft.dev/weft/internal/reconcile"
)

// bufferSize is the size of the socket's buffers: a transaction is sent in one piece, and answered message by message.
const bufferSize = 32 << 20

// ErrRefused reports that the kernel rejected a transaction; nothing of it is in effect.
var ErrRefused = errors.New("the kernel refused the nftables transaction")

// Options of an Engine.
type Options struct {
	// Netns is the path of the network namespace; "" is that of the caller of NewEngine.
	Netns string
	// Family and Table name the table, which the engine manages as a whole.
	Family Family
	Table  string
}

// Engine programs one table. The methods of reconcile.Engine are not called concurrently; Watch runs concurrently with them.
type Engine struct {
	family Family
	table  *nftables.Table
	netns  ns.NetNS
	// port is the netlink port of conn, by which Watch recognises the engine's own transactions.
	port atomic.Uint32

	mutex sync.Mutex
	conn  *nftables.Conn // nil after a failure
	// known is the content of the table after the last Read or Commit; nil before the first.
	known map[Key]Item
	// dormant reports that no packet traversed the table at the last Read, because another program had set its flag dormant.
	dormant bool
}

var _ reconcile.Engine[Key, Item] = (*Engine)(nil)

// NewEngine returns an engine. It changes nothing in the kernel. The caller must close it.
func NewEngine(options Options) (*Engine, error) {
	if !validName(options.Table) {
		return nil, fmt.Errorf("nftables engine: %w", invalid("table name %.40q", options.Table))
	}
	if options.Family != FamilyInet && options.Family != FamilyBridge {
		return nil, fmt.Errorf("nftables engine: %w", invalid("family %.40q, want inet or bridge", options.Family))
	}
	e := &Engine{family: options.Family, table: &nftables.Table{Name: options.Table, Family: familyOf(options.Family)}}
	var err error
	if options.Netns == "" {
		e.netns, err = ns.GetCurrentNS()
	} else {
		e.netns, err = ns.GetNS(options.Netns)
	}
	if err != nil {
		return nil, fmt.Errorf("nftables engine: network namespace %s: %w", options.Netns, err)
	}
	if err := e.connect(); err != nil {
		return nil, errors.Join(err, e.netns.Close())
	}
	return e, nil
}

func familyOf(family Family) nftables.TableFamily {
	if family == FamilyBridge {
		return nftables.TableFamilyBridge
	}
	return nftables.TableFamilyINet
}

// connect opens the socket if there is none.
func (e *Engine) connect() error {
	if e.conn != nil {
		return nil
	}
	var err error
	e.conn, err = nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(int(e.netns.Fd())), nftables.WithSockOptions(e.prepare))
	if err != nil {
		return fmt.Errorf("nftables socket: %w", err)
	}
	return nil
}

// prepare sets the socket's buffers and stores its port.
func (e *Engine) prepare(conn *netlink.Conn) error {
	if err := errors.Join(conn.SetReadBuffer(bufferSize), conn.SetWriteBuffer(bufferSize)); err != nil {
		return fmt.Errorf("buffers of the nftables socket: %w", err)
	}
	port, err := nfnetlink.Port(conn)
	if err != nil {
		return err //nolint:wrapcheck // it names the socket
	}
	e.port.Store(port)
	return nil
}

// disconnect closes the socket after a failure: unread answers would be mistaken for those of the next transaction.
func (e *Engine) disconnect() {
	if e.conn != nil {
		_ = e.conn.CloseLasting() // the next transaction repeats what was not confirmed
		e.conn = nil
	}
}

// Close releases the engine's resources. What is programmed stays.
func (e *Engine) Close() {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.disconnect()
	_ = e.netns.Close() // nothing was written
}

// Read implements reconcile.Engine. A table that does not exist is empty.
func (e *Engine) Read(ctx context.Context) (map[Key]Item, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.read(ctx)
}

func (e *Engine) read(ctx context.Context) (map[Key]Item, error) {
	if err := errors.Join(ctx.Err(), e.connect()); err != nil {
		return nil, err
	}
	state := map[Key]Item{}
	err := e.readSets(ctx, state)
	if err == nil {
		err = e.readChains(ctx, state)
	}
	if err != nil {
		e.disconnect()
		return nil, fmt.Errorf("reading table %s %s: %w", e.family, e.table.Name, err)
	}
	e.known = maps.Clone(state)
	return state, nil
}

func (e *Engine) readChains(ctx context.Context, state map[Key]Item) error {
	chains, err := e.conn.ListChainsOfTableFamily(e.table.Family)
	if err != nil {
		return err
	}
	if err := e.readFlag(); err != nil {
		return err
	}
	for _, chain := range chains {
		if chain.Table == nil || chain.Table.Name != e.table.Name {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		item := chainOf(chain)
		item.dormant = e.dormant && item.Hook != ""
		state[item.Key()] = item
		rules, err := e.conn.GetRules(e.table, chain)
		if err != nil {
			return fmt.Errorf("chain %s: %w", chain.Name, err)
		}
		if len(rules) == 0 {
			continue
		}
		read := &Rules{Chain: chain.Name, digests: make([]string, len(rules))}
		for i, rule := range rules {
			read.digests[i] = digest(e.family, rule.Exprs, comment(rule.UserData))
		}
		state[read.Key()] = read
	}
	return nil
}

// readFlag reads the table's flag dormant.
func (e *Engine) readFlag() error {
	var tables []nfnetlink.Table
	err := e.netns.Do(func(ns.NetNS) (err error) {
		tables, err = nfnetlink.Tables()
		return err
	})
	e.dormant = slices.Contains(tables, nfnetlink.Table{Family: byte(e.table.Family), Name: e.table.Name, Dormant: true})
	if err != nil {
		return fmt.Errorf("flag of the table: %w", err)
	}
	return nil
}

// hookNumbers are the numbers of the hooks (NF_INET_*, and NF_BR_* which are equal).
func hookNumber(hook Hook) *nftables.ChainHook {
	switch hook {
	case HookPrerouting:
		return nftables.ChainHookPrerouting
	case HookInput:
		return nftables.ChainHookInput
	case HookForward:
		return nftables.ChainHookForward
	case HookOutput:
		return nftables.ChainHookOutput
	default:
		return nftables.ChainHookPostrouting
	}
}

// chainOf returns the item. A chain that the engine would not create gets a hook that equals none.
func chainOf(chain *nftables.Chain) *Chain {
	item := &Chain{Name: chain.Name}
	if chain.Hooknum == nil {
		return item
	}
	item.Hook = "other"
	if chain.Type != nftables.ChainTypeFilter || chain.Policy == nil || *chain.Policy != nftables.ChainPolicyAccept || chain.Priority == nil {
		return item
	}
	item.Priority = int(int32(*chain.Priority))
	for _, hook := range []Hook{HookPrerouting, HookInput, HookForward, HookOutput, HookPostrouting} {
		if *hookNumber(hook) == *chain.Hooknum {
			item.Hook = hook
		}
	}
	return item
}

// commentType is NFTNL_UDATA_RULE_COMMENT of libnftnl's udata.h.
const commentType = 0

// comment returns a rule's comment, a record of type, length and text with a zero byte.
func comment(data []byte) string {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		if data[0] == commentType {
			return strings.TrimRight(string(data[2:2+int(data[1])]), "\x00")
		}
		data = data[2+int(data[1]):]
	}
	return ""
}

// userData is the inverse of comment.
func userData(owner string) []byte {
	if owner == "" {
		return nil
	}
	return append(append([]byte{commentType, byte(len(owner) + 1)}, owner...), 0)
}

// Attributes of sets (linux/netfilter/nf_tables.h).
const (
	verdictData      = 0xffffff00
	attributeVerdict = 2
	attributeCode    = 1
	attributeChain   = 2
)

// readSets reads the sets by its own request: the library confuses the type of a verdict map's values with that of its keys.
func (e *Engine) readSets(ctx context.Context, state map[Key]Item) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(e.netns.Fd())})
	if err != nil {
		return fmt.Errorf("nftables socket: %w", err)
	}
	defer func() { _ = conn.Close() }() // it only read
	attributes, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_SET_TABLE, Data: []byte(e.table.Name + "\x00")}})
	if err != nil {
		return err
	}
	messages, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETSET, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{byte(e.table.Family), 0, 0, 0}, attributes...),
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listing sets: %w", err)
	}
	for _, message := range messages {
		if err := ctx.Err(); err != nil {
			return err
		}
		set, err := setOf(message)
		if err != nil {
			return err
		}
		state[set.Key()] = set
		if err := e.readElements(set, state); err != nil {
			return fmt.Errorf("set %s: %w", set.Name, err)
		}
	}
	return nil
}

func setOf(message netlink.Message) (*Set, error) {
	if len(message.Data) < 4 {
		return nil, fmt.Errorf("set of %d bytes", len(message.Data))
	}
	decoder, err := netlink.NewAttributeDecoder(message.Data[4:])
	if err != nil {
		return nil, err
	}
	decoder.ByteOrder = binary.BigEndian
	set := &Set{read: &setKind{}}
	for decoder.Next() {
		switch decoder.Type() {
		case unix.NFTA_SET_NAME:
			set.Name = decoder.String()
		case unix.NFTA_SET_KEY_TYPE:
			set.read.magic = decoder.Uint32()
		case unix.NFTA_SET_KEY_LEN:
			set.read.size = decoder.Uint32()
		case unix.NFTA_SET_FLAGS:
			flags := decoder.Uint32()
			set.read.interval = flags&unix.NFT_SET_INTERVAL != 0
			if flags&^(unix.NFT_SET_INTERVAL|unix.NFT_SET_MAP|nftables.NFT_SET_CONCAT) != 0 {
				set.read.magic = math.MaxUint32 // timeouts and the like: the engine does not create such a set
			}
		case unix.NFTA_SET_DATA_TYPE:
			set.read.verdicts = decoder.Uint32() == verdictData
		}
	}
	return set, decoder.Err()
}

// parts returns the sizes of the key's parts, by the types that the key's type is composed of.
func (k setKind) parts() []int {
	var sizes []int
	for magic := k.magic; magic != 0; magic >>= typeBits {
		size := 0
		for field := IPSource; field <= ARPSenderMAC; field++ {
			if info := field.info(); info.datatype.GetNFTMagic() == magic&(1<<typeBits-1) {
				size = info.size
			}
		}
		sizes = append(sizes, size)
	}
	slices.Reverse(sizes)
	return sizes
}

func (e *Engine) readElements(set *Set, state map[Key]Item) error {
	elements, err := e.conn.GetSetElements(&nftables.Set{Table: e.table, Name: set.Name})
	if err != nil {
		return err
	}
	parts := set.read.parts()
	if set.read.interval && len(parts) == 1 {
		elements = nfnetlink.Intervals(elements)
	}
	for i := range elements {
		element := &elements[i]
		end := element.KeyEnd
		if len(end) == 0 {
			end = element.Key
		}
		item := &Element{Set: set.Name, Match: split(string(element.Key), string(end), parts)}
		if set.read.verdicts {
			item.Verdict = decodeVerdict(element.Val)
		}
		state[item.Key()] = item
	}
	return nil
}

// after returns the key plus one; ok is false for the last key.
func after(key string) (more []byte, ok bool) {
	more = []byte(key)
	for i := len(more) - 1; i >= 0; i-- {
		more[i]++
		if more[i] != 0 {
			return more, true
		}
	}
	return nil, false
}

// split splits keys into the values of their parts, which are padded in a key of several.
func split(from, to string, sizes []int) []Value {
	if len(sizes) == 1 {
		return []Value{{From: from, To: to}}
	}
	var values []Value
	for _, size := range sizes {
		if len(from) < padded(size) || len(to) < padded(size) {
			break
		}
		values = append(values, Value{From: from[:size], To: to[:size]})
		from, to = from[padded(size):], to[padded(size):]
	}
	return values
}

func decodeVerdict(data []byte) Verdict {
	decoder, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return Verdict{Kind: "other"}
	}
	decoder.ByteOrder = binary.BigEndian
	var code int32
	var chain string
	for decoder.Next() {
		switch decoder.Type() {
		case attributeCode:
			code = int32(decoder.Uint32())
		case attributeChain:
			chain = decoder.String()
		}
	}
	if decoder.Err() != nil {
		return Verdict{Kind: "other"}
	}
	return verdictOf(verdictKind(code), chain)
}
