package openflow

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
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
	mod Mod
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
	s.send(helloMessage())
	r := bufio.NewReader(s.nc)
	for {
		m, err := readMessage(r)
		if err != nil {
			return
		}
		if err := s.handle(m); err != nil {
			refusal := &Error{Type: 1, Code: 6} // OFPBRC_BAD_LEN
			errors.As(err, &refusal)
			s.refuse(m.xid, refusal)
		}
	}
}

func (s *fakeSession) send(m message) {
	s.writing.Lock()
	defer s.writing.Unlock()
	_, _ = s.nc.Write(m.appendWire(nil))
}

func (s *fakeSession) refuse(xid uint32, e *Error) {
	refusal := *e
	refusal.XID = xid
	s.send(refusal.message())
}

// report sends reports of changes by others. It runs under the fake's lock, so reports are in the order of the changes.
func (s *fakeSession) report(updates []FlowUpdate) {
	for _, u := range updates {
		s.send(multipartReply(0, partFlowMonitor, 0, appendFlowUpdate(nil, u.Event, u.Flow)))
	}
}

func multipartReply(xid uint32, kind uint16, flags byte, body []byte) message {
	b := append(binary.BigEndian.AppendUint16(nil, kind), 0, flags, 0, 0, 0, 0)
	return message{msgMultipartReply, xid, append(b, body...)}
}

func (s *fakeSession) handle(m message) error {
	switch m.kind {
	case msgHello, msgEchoReply, msgExperimenter, msgSetConfig, msgSetAsync: // the fake does not forward group changes
	case msgEchoRequest:
		s.send(message{msgEchoReply, m.xid, m.body})
	case msgBarrierRequest:
		s.send(message{msgBarrierReply, m.xid, nil})
	case msgFeaturesRequest:
		s.send(message{msgFeaturesReply, m.xid, zeros([]byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 254}, 11)})
	case msgFlowMod, msgGroupMod:
		mod, err := decodeMod(m)
		if err != nil {
			return err
		}
		_, err = s.fake.apply([]Mod{mod}, s)
		return err
	case msgBundleControl:
		return s.bundleControl(m)
	case msgBundleAdd:
		return s.bundleAdd(m)
	case msgMultipart:
		return s.multipart(m)
	default:
		return &Error{Type: 1, Code: 1} // OFPBRC_BAD_TYPE
	}
	return nil
}

func decodeMod(m message) (Mod, error) {
	if m.kind == msgGroupMod {
		command, g, err := decodeGroupMod(m.body)
		return Mod{g, command == groupDelete}, err
	}
	command, f, err := decodeFlowMod(m.body)
	return Mod{f, command == flowDelete || command == flowDeleteStrict}, err
}

func (s *fakeSession) bundleAdd(m message) error {
	if len(m.body) < 8+headerLen {
		return malformed("bundle message")
	}
	inner := message{kind: m.body[9], xid: m.xid, body: m.body[8+headerLen:]}
	mod, err := decodeMod(inner)
	if err != nil {
		return err
	}
	id := binary.BigEndian.Uint32(m.body)
	s.bundles[id] = append(s.bundles[id], bundled{m.xid, mod})
	return nil
}

func (s *fakeSession) bundleControl(m message) error {
	if len(m.body) < 8 {
		return malformed("bundle control")
	}
	id, kind := binary.BigEndian.Uint32(m.body), binary.BigEndian.Uint16(m.body[4:])
	if kind == bundleCommit {
		if err := s.commit(id); err != nil {
			return err
		}
	}
	if kind != bundleOpen {
		delete(s.bundles, id)
	}
	body := append([]byte(nil), m.body...)
	body[5]++ // the type of an answer is that of the request plus one
	s.send(message{msgBundleControl, m.xid, body})
	return nil
}

// commit makes a bundle's changes. Like a switch it first reports the change that failed, and then that the commit failed.
func (s *fakeSession) commit(id uint32) error {
	all := s.bundles[id]
	mods := make([]Mod, 0, len(all))
	for _, b := range all {
		mods = append(mods, b.mod)
	}
	_, err := s.fake.apply(mods, s)
	if err == nil {
		return nil
	}
	refusal := &Error{Type: 5} // OFPFMFC_UNKNOWN
	errors.As(err, &refusal)
	for _, b := range all {
		if b.mod.Entry.String() == refusal.Of {
			s.refuse(b.xid, refusal)
		}
	}
	return &Error{Type: 17, Code: 13} // OFPBFC_MSG_FAILED
}

func (s *fakeSession) multipart(m message) error {
	if len(m.body) < 8 {
		return malformed("multipart request")
	}
	s.fake.mu.Lock()
	defer s.fake.mu.Unlock()
	kind := binary.BigEndian.Uint16(m.body)
	var parts [][]byte
	switch kind {
	case partFlowDesc:
		for _, e := range s.fake.entries {
			if f, ok := e.(*Flow); ok {
				parts = append(parts, flowDesc(f))
			}
		}
	case partGroupDesc:
		for _, e := range s.fake.entries {
			if g, ok := e.(*Group); ok {
				parts = append(parts, groupDesc(g))
			}
		}
	case partFlowMonitor:
		s.monitoring = true
	default:
		return &Error{Type: 1, Code: 2} // OFPBRC_BAD_MULTIPART
	}
	for _, part := range parts {
		s.send(multipartReply(m.xid, kind, partMore, part))
	}
	s.send(multipartReply(m.xid, kind, 0, nil))
	return nil
}
