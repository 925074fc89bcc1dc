package openflow

import (
	"context"
	"encoding/binary"
	"fmt"
)

// Bundle control types and flags (OpenFlow 1.5.1, 7.3.9).
const (
	bundleOpen    = 0
	bundleCommit  = 4
	bundleDiscard = 6
	// bundleFlags: atomic, so that no packet sees half of the bundle; ordered, so that a group exists before a flow uses it.
	bundleFlags = 1 | 2
)

// Mod is one change of a bundle: it adds, replaces or deletes a flow or a group.
type Mod struct {
	Entry  Entry
	Delete bool
}

func (m Mod) message() (message, error) {
	switch e := m.Entry.(type) {
	case *Flow:
		if m.Delete {
			return flowMod(flowDeleteStrict, e), nil
		}
		return flowMod(flowAdd, e), nil
	case *Group:
		if m.Delete {
			return groupMod(groupDelete, e), nil
		}
		return groupMod(groupAddOrModify, e), nil
	default:
		return message{}, fmt.Errorf("not a switch entry: %T", m.Entry)
	}
}

func (m Mod) validate() error {
	if m.Delete {
		return nil
	}
	switch e := m.Entry.(type) {
	case *Flow:
		return e.Validate()
	case *Group:
		return e.Validate()
	default:
		return fmt.Errorf("not a switch entry: %T", m.Entry)
	}
}

func bundleControl(id uint32, kind uint16) message {
	b := binary.BigEndian.AppendUint32(nil, id)
	b = binary.BigEndian.AppendUint16(b, kind)
	return message{kind: msgBundleControl, body: binary.BigEndian.AppendUint16(b, bundleFlags)}
}

// appendBundleAdd appends m, wrapped as a part of bundle id. The wrapper and m have the same XID.
func appendBundleAdd(b []byte, id uint32, m message) []byte {
	start := len(b)
	b = append(b, version15, msgBundleAdd, 0, 0)
	b = binary.BigEndian.AppendUint32(b, m.xid)
	b = append(binary.BigEndian.AppendUint32(b, id), 0, 0, 0, bundleFlags)
	b = m.appendWire(b)
	binary.BigEndian.PutUint16(b[start+2:], uint16(len(b)-start)) //nolint:gosec // the caller has checked that it fits
	return b
}

// bundleOverhead is what a bundle adds to a message: a header, and the bundle's number and flags.
const bundleOverhead = headerLen + 8

// Bundle makes all changes in their order, or none, so that every packet sees the tables either before or after them. It returns once
// they are in effect. The first change that the switch refuses is returned as *Error. If ctx or the connection ends during the commit,
// the switch may have made the changes or not: the caller must read again.
//
// Bundle validates the changes first, and commits only after the switch has accepted every message of the bundle. So the switch seldom
// has to undo a half-made bundle.
func (c *Conn) Bundle(ctx context.Context, mods []Mod) error {
	if len(mods) == 0 {
		return nil
	}
	b, err := c.prepare(mods)
	if err != nil {
		return err
	}
	return c.commit(ctx, b)
}

// prepared is an encoded bundle, up to the barrier before its commit. It holds a call, which commit or drop ends.
type prepared struct {
	mods []Mod
	call *call
	fill []byte
}

// preparing is the result of prepare: a bundle, or the error.
type preparing struct {
	bundle *prepared
	err    error
}

// prepareSoon prepares a bundle concurrently with its caller.
func (c *Conn) prepareSoon(mods []Mod) <-chan preparing {
	ready := make(chan preparing, 1)
	go func() {
		b, err := c.prepare(mods)
		ready <- preparing{b, err}
	}()
	return ready
}

// drop releases a bundle that is not committed. next may be nil.
func (c *Conn) drop(next <-chan preparing) {
	if next == nil {
		return
	}
	if p := <-next; p.err == nil {
		c.end(p.bundle.call)
	}
}

// prepare validates and encodes a bundle. Nothing is sent.
func (c *Conn) prepare(mods []Mod) (*prepared, error) {
	k := c.begin(len(mods) + 3) // open, the changes, barrier, commit
	fill, err := fillBundle(k, mods)
	if err != nil {
		c.end(k)
		return nil, err
	}
	return &prepared{mods: mods, call: k, fill: fill}, nil
}

func (k *call) barrier() uint32 { return k.first + k.count - 2 }

func fillBundle(k *call, mods []Mod) ([]byte, error) {
	id := k.first
	open := bundleControl(id, bundleOpen)
	open.xid = k.first
	b := open.appendWire(make([]byte, 0, 256*len(mods)))
	for i, mod := range mods {
		if err := mod.validate(); err != nil {
			return nil, err
		}
		m, err := mod.message()
		if err != nil {
			return nil, err
		}
		if len(m.body)+headerLen+bundleOverhead > maxMessage {
			return nil, fmt.Errorf("%s: %w", mod.Entry.Key(), errTooLong)
		}
		m.xid = k.first + 1 + uint32(i) //nolint:gosec // far below
		b = appendBundleAdd(b, id, m)
	}
	return message{kind: msgBarrierRequest, xid: k.barrier()}.appendWire(b), nil
}

// commit sends a bundle and waits until it is in effect.
func (c *Conn) commit(ctx context.Context, b *prepared) error {
	k, mods, id := b.call, b.mods, b.call.first
	defer c.end(k)
	c.expect(k, k.barrier())
	c.enqueue(b.fill)
	if err := c.wait(ctx, k); err != nil {
		c.discard(id)
		return fmt.Errorf("fill a bundle: %w", err)
	}
	if err := c.bundleError(k, mods); err != nil {
		c.discard(id)
		return err
	}
	order := bundleControl(id, bundleCommit)
	order.xid = k.barrier() + 1
	c.expect(k, order.xid)
	c.enqueue(order.appendWire(nil))
	if err := c.wait(ctx, k); err != nil {
		return fmt.Errorf("commit a bundle: %w", err)
	}
	return c.bundleError(k, mods)
}

// discard makes the switch drop a bundle. It does not wait for an answer.
func (c *Conn) discard(id uint32) {
	c.enqueue(bundleControl(id, bundleDiscard).appendWire(nil))
}

// bundleError returns the first error of the switch, with the change that it is about.
func (c *Conn) bundleError(k *call, mods []Mod) error {
	errs := c.refused(k)
	if len(errs) == 0 {
		return nil
	}
	first := errs[0]
	first.Of = "a bundle"
	if i := int(first.XID - k.first - 1); i >= 0 && i < len(mods) {
		first.Of = mods[i].Entry.String()
		if mods[i].Delete {
			first.Of = "the deletion of " + mods[i].Entry.Key().String()
		}
	}
	return first
}
