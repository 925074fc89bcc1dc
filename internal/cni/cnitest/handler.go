// Package cnitest has an agent for tests of its clients: a Handler that keeps attachments in memory.
package cnitest

import (
	"context"
	"net"
	"slices"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"weft.dev/weft/internal/cni"
)

// Handler keeps attachments in memory: each gets the next address of 10.128.0.0/14. It does what the specification requires of a plugin,
// and changes nothing on the node. The zero value is ready.
type Handler struct {
	// Before, if not nil, is called first for every request; its error is the request's.
	Before func(ctx context.Context, req *cni.Request) error

	mu       sync.Mutex
	attached map[cni.Attachment]*types100.Result
	last     uint32
	requests []*cni.Request
}

// Requests returns the requests served so far, in their order.
func (h *Handler) Requests() []*cni.Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.requests)
}

// Attached returns the number of attachments.
func (h *Handler) Attached() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.attached)
}

func (h *Handler) begin(ctx context.Context, req *cni.Request) error {
	h.mu.Lock()
	h.requests = append(h.requests, req)
	h.mu.Unlock()
	if h.Before == nil {
		return nil
	}
	return h.Before(ctx, req)
}

func key(req *cni.Request) cni.Attachment {
	return cni.Attachment{ContainerID: req.ContainerID, IfName: req.IfName}
}

// Add implements cni.Handler. A repeated ADD gets the same answer.
func (h *Handler) Add(ctx context.Context, req *cni.Request) (*types100.Result, error) {
	if err := h.begin(ctx, req); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if result := h.attached[key(req)]; result != nil {
		return result, nil
	}
	h.last++
	ip := net.IPv4(10, 128, byte(h.last>>8), byte(h.last)).To4() //nolint:gosec // Two bytes of it.
	result := &types100.Result{
		Interfaces: []*types100.Interface{{Name: req.IfName, Mac: "0a:58:0a:80:00:01", Mtu: 1450, Sandbox: req.Netns}},
		IPs: []*types100.IPConfig{{
			Interface: new(0), Address: net.IPNet{IP: ip, Mask: net.CIDRMask(14, 32)}, Gateway: net.IPv4(10, 128, 0, 1),
		}},
	}
	if h.attached == nil {
		h.attached = map[cni.Attachment]*types100.Result{}
	}
	h.attached[key(req)] = result
	return result, nil
}

// Del implements cni.Handler.
func (h *Handler) Del(ctx context.Context, req *cni.Request) error {
	if err := h.begin(ctx, req); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.attached, key(req))
	return nil
}

// Check implements cni.Handler. The addresses must be those of the result that the runtime passes.
func (h *Handler) Check(ctx context.Context, req *cni.Request) error {
	if err := h.begin(ctx, req); err != nil {
		return err
	}
	prev, err := req.NetConf.PrevResult()
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	have := h.attached[key(req)]
	if have == nil {
		return cni.Errorf(cni.CodeUnknownContainer, "%s is not attached", req.ContainerID)
	}
	if prev == nil || !slices.EqualFunc(prev.IPs, have.IPs, func(a, b *types100.IPConfig) bool {
		return a.Address.String() == b.Address.String()
	}) {
		return cni.Errorf(cni.CodeInternal, "the addresses differ from the runtime's result")
	}
	return nil
}

// Status implements cni.Handler.
func (h *Handler) Status(ctx context.Context, req *cni.Request) error { return h.begin(ctx, req) }

// GC implements cni.Handler.
func (h *Handler) GC(ctx context.Context, req *cni.Request) error {
	if err := h.begin(ctx, req); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for have := range h.attached {
		if !slices.Contains(req.NetConf.ValidAttachments, have) {
			delete(h.attached, have)
		}
	}
	return nil
}
