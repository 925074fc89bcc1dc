package bridge

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/wire"
)

// Serve serves OpenFlow 1.5 from the fake until ctx ends or the listener fails. It closes the listener.
func (f *Fake) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var sessions sync.WaitGroup
	defer sessions.Wait()
	for {
		nc, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("accept a connection: %w", err)
		}
		s := &fakeSession{fake: f, nc: nc, bundles: map[uint32][]bundled{}}
		end := context.AfterFunc(ctx, func() { _ = nc.Close() })
		sessions.Go(func() {
			defer end()
			s.run()
		})
	}
}

// fakeSession is one connection to the fake.
type fakeSession struct {
	fake    *Fake
	nc      net.Conn
	bundles map[uint32][]bundled
	// monitoring is guarded by the fake's lock.
	monitoring bool

	writing sync.Mutex
}

type bundled struct {
	xid uint32
	mod openflow.Mod
}

func (s *fakeSession) run() {
	s.fake.mu.Lock()
	s.fake.watchers[s] = struct{}{}
	s.fake.mu.Unlock()
	defer func() {
		s.fake.mu.Lock()
		delete(s.fake.watchers, s)
		s.fake.mu.Unlock()
		_ = s.nc.Close()
	}()
	s.send(openflow.Hello())
	r := bufio.NewReader(s.nc)
	for {
		m, err := openflow.ReadMessage(r)
		if err != nil {
			return
		}
		if err := s.handle(m); err != nil {
			refusal := &openflow.Error{Type: 1, Code: 6} // OFPBRC_BAD_LEN
			errors.As(err, &refusal)
			s.refuse(m.XID, refusal)
		}
	}
}

func (s *fakeSession) send(m openflow.Message) {
	s.writing.Lock()
	defer s.writing.Unlock()
	_, _ = s.nc.Write(m.AppendWire(nil))
}

func (s *fakeSession) refuse(xid uint32, e *openflow.Error) {
	refusal := *e
	refusal.XID = xid
	s.send(refusal.Message())
}

// report sends reports of changes by others. It runs under the fake's lock, so reports are in the order of the changes.
func (s *fakeSession) report(updates []openflow.FlowUpdate) {
	for _, u := range updates {
		s.send(openflow.MultipartReply(0, openflow.PartFlowMonitor, 0, openflow.EncodeFlowUpdate(nil, u.Event, u.Flow)))
	}
}

func (s *fakeSession) handle(m openflow.Message) error {
	switch m.Kind {
	case openflow.MsgHello, openflow.MsgEchoReply, openflow.MsgExperimenter, openflow.MsgSetConfig, openflow.MsgSetAsync: // the fake does not forward group changes
	case openflow.MsgEchoRequest:
		s.send(openflow.Message{Kind: openflow.MsgEchoReply, XID: m.XID, Body: m.Body})
	case openflow.MsgBarrierRequest:
		s.send(openflow.Message{Kind: openflow.MsgBarrierReply, XID: m.XID})
	case openflow.MsgFeaturesRequest:
		s.send(openflow.Message{Kind: openflow.MsgFeaturesReply, XID: m.XID, Body: wire.Zeros([]byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 254}, 11)})
	case openflow.MsgFlowMod, openflow.MsgGroupMod:
		mod, err := openflow.DecodeMod(m)
		if err != nil {
			return err
		}
		_, err = s.fake.apply([]openflow.Mod{mod}, s)
		return err
	case openflow.MsgBundleControl:
		return s.bundleControl(m)
	case openflow.MsgBundleAdd:
		return s.bundleAdd(m)
	case openflow.MsgMultipart:
		return s.multipart(m)
	default:
		return &openflow.Error{Type: 1, Code: 1} // OFPBRC_BAD_TYPE
	}
	return nil
}

func (s *fakeSession) bundleAdd(m openflow.Message) error {
	if len(m.Body) < 8+openflow.HeaderLen {
		return wire.Malformed("bundle message")
	}
	inner := openflow.Message{Kind: m.Body[9], XID: m.XID, Body: m.Body[8+openflow.HeaderLen:]}
	mod, err := openflow.DecodeMod(inner)
	if err != nil {
		return err
	}
	id := binary.BigEndian.Uint32(m.Body)
	s.bundles[id] = append(s.bundles[id], bundled{m.XID, mod})
	return nil
}

func (s *fakeSession) bundleControl(m openflow.Message) error {
	if len(m.Body) < 8 {
		return wire.Malformed("bundle control")
	}
	id, kind := binary.BigEndian.Uint32(m.Body), binary.BigEndian.Uint16(m.Body[4:])
	if kind == openflow.BundleCommit {
		if err := s.commit(id); err != nil {
			return err
		}
	}
	if kind != openflow.BundleOpen {
		delete(s.bundles, id)
	}
	body := append([]byte(nil), m.Body...)
	body[5]++ // the type of an answer is that of the request plus one
	s.send(openflow.Message{Kind: openflow.MsgBundleControl, XID: m.XID, Body: body})
	return nil
}

// commit makes a bundle's changes. Like a switch it first reports the change that failed, and then that the commit failed.
func (s *fakeSession) commit(id uint32) error {
	all := s.bundles[id]
	mods := make([]openflow.Mod, 0, len(all))
	for _, b := range all {
		mods = append(mods, b.mod)
	}
	_, err := s.fake.apply(mods, s)
	if err == nil {
		return nil
	}
	refusal := &openflow.Error{Type: 5} // OFPFMFC_UNKNOWN
	errors.As(err, &refusal)
	for _, b := range all {
		if b.mod.Entry.String() == refusal.Of {
			s.refuse(b.xid, refusal)
		}
	}
	return &openflow.Error{Type: 17, Code: 13} // OFPBFC_MSG_FAILED
}

func (s *fakeSession) multipart(m openflow.Message) error {
	if len(m.Body) < 8 {
		return wire.Malformed("multipart request")
	}
	s.fake.mu.Lock()
	defer s.fake.mu.Unlock()
	kind := binary.BigEndian.Uint16(m.Body)
	var parts [][]byte
	switch kind {
	case openflow.PartFlowDesc:
		for _, e := range s.fake.entries {
			if f, ok := e.(*openflow.Flow); ok {
				parts = append(parts, openflow.EncodeFlowDesc(f))
			}
		}
	case openflow.PartGroupDesc:
		for _, e := range s.fake.entries {
			if g, ok := e.(*openflow.Group); ok {
				parts = append(parts, openflow.EncodeGroupDesc(g))
			}
		}
	case openflow.PartFlowMonitor:
		s.monitoring = true
	default:
		return &openflow.Error{Type: 1, Code: 2} // OFPBRC_BAD_MULTIPART
	}
	for _, part := range parts {
		s.send(openflow.MultipartReply(m.XID, kind, openflow.PartMore, part))
	}
	s.send(openflow.MultipartReply(m.XID, kind, 0, nil))
	return nil
}
