// Package clean is the overlay's part of removing Weft from a node: the bridge and everything on it, Weft's nftables, and egress IPs.
package clean

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/cleanup"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/marked"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/ruleset"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// Part returns the overlay's part.
func Part() cleanup.Part {
	return cleanup.Part{Name: "overlay", Run: func(ctx context.Context, o cleanup.Options) error {
		return errors.Join(rows(ctx, o), rules(ctx, o), addresses(ctx, o))
	}}
}

// switchWait bounds the wait for the switch's database.
const switchWait = 10 * time.Second

// rows removes the bridge and everything on it from the switch's database. The switch then deletes its flows and the host's interface.
func rows(ctx context.Context, o cleanup.Options) error {
	socket := filepath.Join(o.OVSRunDir, "db.sock")
	if _, err := os.Lstat(o.At(socket)); errors.Is(err, fs.ErrNotExist) {
		return noSwitch(socket)
	}
	opening, cancel := context.WithTimeout(ctx, switchWait)
	defer cancel()
	engine, err := ovsdb.Open(opening, ovsdb.Config{Endpoint: "unix:" + o.At(socket), Bridges: []string{host.Bridge}})
	if err != nil {
		return fmt.Errorf("start Open vSwitch, and run this again: its database does not answer at %s: %w", socket, err)
	}
	defer engine.Close()
	have, err := engine.Read(ctx)
	if err != nil || len(have) == 0 {
		return err
	}
	if err := engine.Commit(ctx, reconcile.Change[ovsdb.Key, ovsdb.Row]{Delete: have}); err != nil {
		return err
	}
	reportRemoved(o, have)
	return nil
}

// noSwitch returns nil if there is no trace of the bridge: the node has no switch.
func noSwitch(socket string) error {
	for _, name := range []string{host.Bridge, host.Tun} {
		if _, err := netlink.LinkByName(name); err == nil {
			return fmt.Errorf("start Open vSwitch, and run this again: %s is there, and no database at %s", name, socket)
		}
	}
	return nil
}

// rules removes Weft's tables, including the administrator's chain in them, and its rules in other programs' chains.
func rules(ctx context.Context, o cleanup.Options) error {
	engine, err := ruleset.NewEngine(ruleset.Options{Tables: host.Tables(), Foreign: true})
	if err != nil {
		return err
	}
	defer engine.Close()
	have, err := engine.Read(ctx)
	if err != nil || len(have) == 0 {
		return err
	}
	if err := engine.Commit(ctx, reconcile.Change[nft.Key, nft.Item]{Delete: have}); err != nil {
		return err
	}
	tables := map[nft.Key]nft.Item{}
	for key, item := range have {
		if _, foreign := item.(*nft.ForeignJump); foreign || key.Kind == nft.KindTable {
			tables[key] = item
		}
	}
	reportRemoved(o, tables)
	return nil
}

// addresses removes egress IPs from the node's own interface.
func addresses(ctx context.Context, o cleanup.Options) error {
	engine, err := marked.New(marked.Options{})
	if err != nil {
		return err
	}
	defer engine.Close()
	have, err := engine.Read(ctx)
	if err != nil {
		return err
	}
	maps.DeleteFunc(have, func(key link.Key, _ link.Item) bool { return key.Kind != link.KindAddress })
	if len(have) == 0 {
		return nil
	}
	if err := engine.Commit(ctx, reconcile.Change[link.Key, link.Item]{Delete: have}); err != nil {
		return err
	}
	reportRemoved(o, have)
	return nil
}

func reportRemoved[K interface {
	comparable
	fmt.Stringer
}, V any](o cleanup.Options, gone map[K]V) {
	words := make([]string, 0, len(gone))
	for key := range gone {
		words = append(words, key.String())
	}
	slices.Sort(words)
	for _, word := range words {
		o.Report(word)
	}
}
