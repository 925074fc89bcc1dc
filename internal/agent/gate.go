package agent

import (
	"context"
	"sync/atomic"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"weft.dev/weft/internal/cni"
)

// gate is the handler of the CNI socket from the agent's first moment on: until the network exists it asks the runtime
// to try again, and says what is waited for.
type gate struct {
	handler atomic.Pointer[cni.Handler]
	waiting atomic.Pointer[string]
}

func newGate() *gate {
	g := &gate{}
	g.wait("the agent is starting")
	return g
}

// wait sets what is waited for while there is no handler.
func (g *gate) wait(what string) { g.waiting.Store(&what) }

// open lets requests through to the handler.
func (g *gate) open(h cni.Handler) { g.handler.Store(&h) }

func (g *gate) through(code cni.Code) (cni.Handler, error) {
	if h := g.handler.Load(); h != nil {
		return *h, nil
	}
	return nil, cni.Errorf(code, "the node's network is not ready: %s: try again later", *g.waiting.Load())
}

// Add implements cni.Handler.
func (g *gate) Add(ctx context.Context, req *cni.Request) (*types100.Result, error) {
	h, err := g.through(cni.CodeTryAgainLater)
	if err != nil {
		return nil, err
	}
	return h.Add(ctx, req)
}

// Del implements cni.Handler.
func (g *gate) Del(ctx context.Context, req *cni.Request) error {
	h, err := g.through(cni.CodeTryAgainLater)
	if err != nil {
		return err
	}
	return h.Del(ctx, req)
}

// Check implements cni.Handler.
func (g *gate) Check(ctx context.Context, req *cni.Request) error {
	h, err := g.through(cni.CodeTryAgainLater)
	if err != nil {
		return err
	}
	return h.Check(ctx, req)
}

// Status implements cni.Handler.
func (g *gate) Status(ctx context.Context, req *cni.Request) error {
	h, err := g.through(cni.CodeNotAvailable)
	if err != nil {
		return err
	}
	return h.Status(ctx, req)
}

// GC implements cni.Handler.
func (g *gate) GC(ctx context.Context, req *cni.Request) error {
	h, err := g.through(cni.CodeTryAgainLater)
	if err != nil {
		return err
	}
	return h.GC(ctx, req)
}
