// Package provider serves KubeStack's gRPC interface: networks and load balancers in OpenStack, and pods on them, for existing clients of
// KubeStack. It needs neither Kubernetes' API nor Weft's agent.
//
// A call that fails for a functional reason answers gRPC's OK with the reason in the field error, as KubeStack does.
package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weft.dev/weft/api/kubestack"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/plug"
)

// Options of a Server.
type Options struct {
	Cloud  Reach
	Plugin plug.Plugin
	// Host is the node's name in Neutron: external_ids:hostname of its Open vSwitch.
	Host string
	// Records is the directory of the records of pods.
	Records string
	// Sandboxes finds the network namespaces of pods.
	Sandboxes Sandboxes
	// PodSpecs is the directory of HyperContainer's pod specifications; default /var/lib/kubelet/hyper.
	PodSpecs string
	Log      *slog.Logger
}

// Reach returns OpenStack, or an error that says why it is not reachable.
type Reach func(context.Context) (*cloud.Cloud, error)

// Sandboxes finds the network namespace of a pod by its container runtime and sandbox.
type Sandboxes interface {
	NetNS(ctx context.Context, runtime, sandbox string) (path string, err error)
}

// Limits of every call.
const (
	callLimit  = 4 * time.Minute
	maxMessage = 1 << 20 // bytes
)

// Register adds KubeStack's three services to a gRPC server.
func Register(s *grpc.Server, opts Options) error {
	if opts.PodSpecs == "" {
		opts.PodSpecs = "/var/lib/kubelet/hyper"
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	records, err := openRecords(opts.Records)
	if err != nil {
		return err
	}
	kubestack.RegisterNetworksServer(s, &networks{cloud: opts.Cloud})
	kubestack.RegisterLoadBalancersServer(s, &balancers{cloud: opts.Cloud})
	kubestack.RegisterPodsServer(s, &pods{Options: opts, records: records})
	return nil
}

// NewServer creates a gRPC server with the limits of every call.
func NewServer(log *slog.Logger, more ...grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append([]grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(64), grpc.ConnectionTimeout(20 * time.Second),
		grpc.UnaryInterceptor(guard(log)),
	}, more...)...)
}

// guard limits every call in time, logs failed ones, and keeps a panic from ending other calls.
func guard(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (answer any, err error) {
		ctx, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		begin := time.Now()
		defer func() {
			if reason := recover(); reason != nil {
				log.Error("call panicked", "method", info.FullMethod, "reason", reason)
				answer, err = nil, status.Error(codes.Internal, "internal error")
			}
		}()
		answer, err = next(ctx, req)
		if failed, ok := answer.(interface{ GetError() string }); ok && failed.GetError() != "" {
			log.Warn("call failed", "method", info.FullMethod, "error", failed.GetError(), "seconds", time.Since(begin).Seconds())
		} else {
			log.Info("call served", "method", info.FullMethod, "seconds", time.Since(begin).Seconds())
		}
		return answer, err
	}
}

// names keep the calls about one object apart: a client that repeats a call after its own time limit would otherwise meet the roll-back of
// the former one. The zero value is ready.
type names struct{ locks attach.Keyed[string] }

// alone runs do while no other call for the name runs.
func (n *names) alone(ctx context.Context, name string, do func() error) error {
	unlock, err := n.locks.Lock(ctx, name)
	if err != nil {
		return fmt.Errorf("another call for %.64q is under way: %w", name, err)
	}
	defer unlock()
	return do()
}

// text returns an error as the text of the field error.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// KubeStack's texts, which clients compare.
const (
	saidNotFound = "NotFound"
	saidMultiple = "MultipleResults"
)

// words returns an error in KubeStack's words, if it has some.
func words(err error) string {
	switch {
	case errors.Is(err, cloud.ErrNotFound):
		return saidNotFound
	case errors.Is(err, cloud.ErrMultiple):
		return saidMultiple
	}
	return text(err)
}

// need returns an error that names the first empty field.
func need(fields ...[2]string) error {
	for _, f := range fields {
		if f[1] == "" {
			return fmt.Errorf("%s is empty", f[0])
		}
	}
	return nil
}
