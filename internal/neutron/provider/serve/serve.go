// Package serve is the program weft-provider: its flags, and what it needs to serve KubeStack's gRPC interface.
//
// It is a program of its own because it needs nothing of Kubernetes: what weft's other commands link would be most of its memory.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"weft.dev/weft/internal/neutron/plug"
	"weft.dev/weft/internal/neutron/plug/ovs"
	"weft.dev/weft/internal/neutron/provider"
)

// options are the values of the flags.
type options struct {
	config   string
	listen   provider.Listen
	uids     []uint
	host     string
	cluster  string
	records  string
	ovsdb    string
	runtimes provider.Runtimes
	// own are the plug-ins of a test; nil: those of the program.
	own plug.Registry
}

// plugins returns the plug-ins by name.
func (o *options) plugins() plug.Registry {
	if o.own != nil {
		return o.own
	}
	return plug.Registry{
		"ovs": func(ctx context.Context, bridge string) (plug.Plugin, error) { return ovs.Open(ctx, o.ovsdb, bridge) },
	}
}

func (o *options) run(ctx context.Context, log *slog.Logger) error {
	config, notes, err := read(o.config)
	if err != nil {
		return err
	}
	for _, note := range notes {
		log.Warn("configuration read differently", "note", note)
	}
	if o.host == "" {
		if o.host, err = os.Hostname(); err != nil {
			return fmt.Errorf("find the host's name: %w", err)
		}
	}
	for _, uid := range o.uids {
		o.listen.UIDs = append(o.listen.UIDs, uint32(uid)) //nolint:gosec // uids have 32 bits
	}
	o.listen.Log = log
	plugin, err := o.plugins().Open(ctx, config.Plugin.Name, config.Plugin.IntegrationBridge)
	if err != nil {
		return err
	}
	defer plugin.Close()
	in, secure, err := o.listen.Open()
	if err != nil {
		return err
	}
	var more []grpc.ServerOption
	if secure != nil {
		more = append(more, grpc.Creds(credentials.NewTLS(secure)))
	}
	server := provider.NewServer(log, more...)
	there := newConnection(o.config, o.cluster, log)
	err = provider.Register(server, provider.Options{
		Cloud: there.get, Plugin: plugin, Host: o.host, Records: o.records, Sandboxes: o.runtimes, Log: log,
	})
	if err != nil {
		return errors.Join(err, in.Close())
	}
	defer context.AfterFunc(ctx, server.GracefulStop)()
	go there.await(ctx)
	log.Info("provider serves", "address", in.Addr().String(), "host", o.host)
	return server.Serve(in)
}
