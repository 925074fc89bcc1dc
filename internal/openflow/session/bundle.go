package session

import (
	"context"
	"fmt"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/wire"
)

// Bundle makes all changes in their order, or none, so that every packet sees the tables either before or after them. It returns once
// they are in effect. The first change that the switch refuses is returned as *openflow.Error. If ctx or the connection ends during the
// commit, the switch may have made the changes or not: the caller must read again.
//
// Bundle validates the changes first, and commits only after the switch has accepted every message of the bundle. So the switch seldom
// has to undo a half-made bundle.
func (c *Conn) Bundle(ctx context.Context, mods []openflow.Mod) error {
	if len(mods) == 0 {
		return nil
	}
	b, err := prepare(c.channel, mods)
	if err != nil {
		return err
	}
	return b.commit(ctx)
}

// Bundles makes the changes of each bundle as Bundle does, one bundle after the other, and prepares the next while the switch commits one.
// It calls done after each bundle, with the number of changes and the error, and ends with the first error: the bundles before it stay in
// effect.
func (c *Conn) Bundles(ctx context.Context, bundles [][]openflow.Mod, done func(mods int, err error)) error {
	var next <-chan preparing
	if len(bundles) > 0 {
		next = prepareSoon(c.channel, bundles[0])
	}
	for i, mods := range bundles {
		p := <-next
		next = nil
		if i+1 < len(bundles) {
			next = prepareSoon(c.channel, bundles[i+1])
		}
		if p.err == nil {
			p.err = p.bundle.commit(ctx)
		}
		done(len(mods), p.err)
		if p.err != nil {
			drop(next)
			return p.err
		}
	}
	return nil
}

// bundle is an encoded bundle, up to the barrier before its commit. It holds a call, which commit or drop ends.
type bundle struct {
	channel *channel
	mods    []openflow.Mod
	call    *call
	fill    []byte
}

// preparing is the result of prepare: a bundle, or the error.
type preparing struct {
	bundle *bundle
	err    error
}

// prepareSoon prepares a bundle concurrently with its caller.
func prepareSoon(c *channel, mods []openflow.Mod) <-chan preparing {
	ready := make(chan preparing, 1)
	go func() {
		b, err := prepare(c, mods)
		ready <- preparing{b, err}
	}()
	return ready
}

// drop releases a bundle that is not committed. next may be nil.
func drop(next <-chan preparing) {
	if next == nil {
		return
	}
	if p := <-next; p.err == nil {
		p.bundle.channel.end(p.bundle.call)
	}
}

// prepare validates and encodes a bundle. Nothing is sent.
func prepare(c *channel, mods []openflow.Mod) (*bundle, error) {
	k := c.begin(len(mods) + 3) // open, the changes, barrier, commit
	fill, err := fillBundle(k, mods)
	if err != nil {
		c.end(k)
		return nil, err
	}
	return &bundle{channel: c, mods: mods, call: k, fill: fill}, nil
}

func (k *call) barrier() uint32 { return k.first + k.count - 2 }

func fillBundle(k *call, mods []openflow.Mod) ([]byte, error) {
	id := k.first
	open := openflow.BundleControl(id, openflow.BundleOpen)
	open.XID = k.first
	b := open.AppendWire(make([]byte, 0, 256*len(mods)))
	for i, mod := range mods {
		if err := mod.Validate(); err != nil {
			return nil, err
		}
		m, err := mod.Message()
		if err != nil {
			return nil, err
		}
		if len(m.Body)+openflow.HeaderLen+openflow.BundleOverhead > wire.MaxMessage {
			return nil, fmt.Errorf("%s: %w", mod.Entry.Key(), openflow.ErrTooLong)
		}
		m.XID = k.first + 1 + uint32(i) //nolint:gosec // far below
		b = openflow.AppendBundleAdd(b, id, m)
	}
	return openflow.Message{Kind: openflow.MsgBarrierRequest, XID: k.barrier()}.AppendWire(b), nil
}

// commit sends the bundle and waits until it is in effect.
func (b *bundle) commit(ctx context.Context) error {
	c, k, id := b.channel, b.call, b.call.first
	defer c.end(k)
	c.expect(k, k.barrier())
	c.enqueue(b.fill)
	if err := c.wait(ctx, k); err != nil {
		b.discard()
		return fmt.Errorf("fill a bundle: %w", err)
	}
	if err := b.refusal(); err != nil {
		b.discard()
		return err
	}
	order := openflow.BundleControl(id, openflow.BundleCommit)
	order.XID = k.barrier() + 1
	c.expect(k, order.XID)
	c.enqueue(order.AppendWire(nil))
	if err := c.wait(ctx, k); err != nil {
		return fmt.Errorf("commit a bundle: %w", err)
	}
	return b.refusal()
}

// discard makes the switch drop the bundle. It does not wait for an answer.
func (b *bundle) discard() {
	b.channel.enqueue(openflow.BundleControl(b.call.first, openflow.BundleDiscard).AppendWire(nil))
}

// refusal returns the first error of the switch, with the change that it is about.
func (b *bundle) refusal() error {
	errs := b.channel.refused(b.call)
	if len(errs) == 0 {
		return nil
	}
	first := errs[0]
	first.Of = "a bundle"
	if i := int(first.XID - b.call.first - 1); i >= 0 && i < len(b.mods) {
		first.Of = b.mods[i].Entry.String()
		if b.mods[i].Delete {
			first.Of = "the deletion of " + b.mods[i].Entry.Key().String()
		}
	}
	return first
}
