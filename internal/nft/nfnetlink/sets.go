package nfnetlink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"go4.org/netipx"
	"golang.org/x/sys/unix"
)

// ErrUndecoded reports that a table has a set of a type that this package does not decode.
var ErrUndecoded = errors.New("a type that is not decoded")

// Set is a set or map, in nft's words.
type Set struct {
	Name string
	// Key and Value are the types of the parts of a key and, of a map, of a value.
	Key, Value []string
	// Flags are constant, interval and timeout. DynamicSets has the sets with the flag dynamic.
	Flags []string
	Size  uint64
	// Elements are missing if packets write them, or they end.
	Elements []Element
}

// Element is an element of a set, or a pair of a map. Its parts are texts: an address, a prefix, a range, a number.
type Element struct {
	Match, Value []string
	Comment      string
}

// Sets returns the sets and maps of a table, without those in rules.
func Sets(family byte, table string) ([]Set, error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("nftables socket: %w", err)
	}
	defer func() { _ = conn.CloseLasting() }() // nothing was written
	list, err := conn.GetSets(&nftables.Table{Name: table, Family: nftables.TableFamily(family)})
	if err != nil { // the library's errors do not tell a type that it does not have
		return nil, fmt.Errorf("listing the sets of table %s: %w: %w", table, ErrUndecoded, err)
	}
	var sets []Set
	for _, set := range list {
		if set.Anonymous {
			continue
		}
		read, err := readSet(conn, set)
		if err != nil {
			return nil, fmt.Errorf("listing set %s of table %s: %w", set.Name, table, err)
		}
		sets = append(sets, read)
	}
	return sets, nil
}

// readSet reads the elements of a set.
func readSet(conn *nftables.Conn, set *nftables.Set) (Set, error) {
	const separator = " . "
	read := Set{Name: set.Name, Key: strings.Split(set.KeyType.Name, separator), Size: uint64(set.Size), Flags: flagsOf(set), Elements: []Element{}}
	if set.IsMap {
		read.Value = strings.Split(set.DataType.Name, separator)
	}
	switch {
	case set.IsMap && set.DataType.Name == "": // the library has the type of verdicts as that of the keys
		return read, fmt.Errorf("%w: verdicts", ErrUndecoded)
	case set.Dynamic || set.HasTimeout:
		return read, nil
	}
	elements, err := conn.GetSetElements(set)
	if err != nil {
		return read, fmt.Errorf("%w: %w", ErrUndecoded, err)
	}
	if set.Interval && len(read.Key) == 1 {
		elements = Intervals(elements)
	}
	for i := range elements {
		e := &elements[i]
		if len(e.KeyEnd) == 0 {
			e.KeyEnd = e.Key
		}
		element := Element{Comment: e.Comment}
		if element.Match, err = decodeParts(read.Key, e.Key, e.KeyEnd); err == nil && set.IsMap {
			element.Value, err = decodeParts(read.Value, e.Val, e.Val)
		}
		if err != nil {
			return read, err
		}
		read.Elements = append(read.Elements, element)
	}
	return read, nil
}

func flagsOf(set *nftables.Set) []string {
	var flags []string
	for _, flag := range []struct {
		set  bool
		name string
	}{{set.Constant, "constant"}, {set.Interval, "interval"}, {set.HasTimeout, "timeout"}} {
		if flag.set {
			flags = append(flags, flag.name)
		}
	}
	return flags
}

// Intervals combines the starts and ends of intervals, which the kernel has as separate elements in a set whose keys have one part. An end is
// the first key after the interval.
func Intervals(elements []nftables.SetElement) []nftables.SetElement {
	slices.SortStableFunc(elements, func(a, b nftables.SetElement) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 || a.IntervalEnd == b.IntervalEnd {
			return c
		}
		if a.IntervalEnd { // the end of one interval precedes the start of the next
			return -1
		}
		return 1
	})
	var found []nftables.SetElement
	for i, element := range elements {
		if element.IntervalEnd {
			continue
		}
		element.KeyEnd = bytes.Repeat([]byte{0xff}, len(element.Key))
		if i+1 < len(elements) && elements[i+1].IntervalEnd {
			element.KeyEnd = before(elements[i+1].Key)
		}
		found = append(found, element)
	}
	return found
}

// before returns the key minus one; the key is not zero.
func before(key []byte) []byte {
	less := slices.Clone(key)
	for i, octet := range slices.Backward(less) {
		if less[i]--; octet != 0 {
			break
		}
	}
	return less
}

// decodeParts returns the parts of a key or value in nft's syntax. In a key of several parts, each is padded.
func decodeParts(types []string, from, to []byte) ([]string, error) {
	const align = 4
	var parts []string
	for _, name := range types {
		size := sizeOf(name)
		padded := size
		if len(types) > 1 {
			padded = (size + align - 1) / align * align
		}
		if size == 0 || len(from) < padded || len(to) < padded {
			return nil, fmt.Errorf("%w: %s of %d bytes", ErrUndecoded, name, len(from))
		}
		part, err := decodePart(name, from[:size], to[:size])
		if err != nil {
			return nil, err
		}
		parts, from, to = append(parts, part), from[padded:], to[padded:]
	}
	return parts, nil
}

// sizeOf returns the size of a type in bytes; 0: it is not decoded.
func sizeOf(name string) int {
	switch name {
	case "ipv4_addr", "mark":
		return 4
	case "ipv6_addr":
		return 16
	case "inet_proto":
		return 1
	case "inet_service":
		return 2
	case "ether_addr":
		return 6
	case "ifname":
		return unix.IFNAMSIZ
	}
	return 0
}

func decodePart(name string, from, to []byte) (string, error) {
	switch name {
	case "ipv4_addr", "ipv6_addr":
		first, _ := netip.AddrFromSlice(from)
		last, _ := netip.AddrFromSlice(to)
		if first == last {
			return first.String(), nil
		}
		ends := netipx.IPRangeFrom(first, last)
		if prefix, ok := ends.Prefix(); ok {
			return prefix.String(), nil
		}
		return ends.String(), nil
	case "inet_proto":
		return span(from, to, func(b []byte) string { return strconv.Itoa(int(b[0])) }), nil
	case "inet_service":
		return span(from, to, func(b []byte) string { return strconv.Itoa(int(binary.BigEndian.Uint16(b))) }), nil
	case "mark":
		return span(from, to, func(b []byte) string { return strconv.FormatUint(uint64(binary.NativeEndian.Uint32(b)), 10) }), nil
	case "ether_addr":
		return span(from, to, func(b []byte) string { return net.HardwareAddr(b).String() }), nil
	case "ifname":
		if bytes.Equal(from, to) {
			return unix.ByteSliceToString(from), nil
		}
	}
	return "", fmt.Errorf("%w: a range of %s", ErrUndecoded, name)
}

// span returns a value, or a range of values.
func span(from, to []byte, text func([]byte) string) string {
	if bytes.Equal(from, to) {
		return text(from)
	}
	return text(from) + "-" + text(to)
}
