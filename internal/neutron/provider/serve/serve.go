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

	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/conf"
	"weft.dev/weft/internal/neutron/openstack"
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
}

// plugins returns the plug-ins by name.
func (o *options) plugins() plug.Registry {
	return plug.Registry{
		"ovs": func(ctx context.Context, bridge string) (plug.Plugin, error) { return ovs.Open(ctx, o.ovsdb, bridge) },
	}
}

func (o *options) run(ctx context.Context, log *slog.Logger) error {
	text, err := os.ReadFile(o.config)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	config, notes, err := conf.Parse(string(text))
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
	client, err := openstack.New(ctx, config.Global, openstack.Options{})
	if err != nil {
		return err
	}
	in, secure, err := o.listen.Open()
	if err != nil {
		return err
	}
	var more []grpc.ServerOption
	if secure != nil {
		more = append(more, grpc.Creds(credentials.NewTLS(secure)))
	}
	server := provider.NewServer(log, more...)
	err = provider.Register(server, provider.Options{
		Cloud: cloud.New(client, cloud.Config{
			Cluster: o.cluster, ExternalNetwork: config.Global.ExtNetID, LoadBalancer: config.LoadBalancer,
		}),
		Plugin: plugin, Host: o.host, Records: o.records, Sandboxes: o.runtimes, Log: log,
	})
	if err != nil {
		return errors.Join(err, in.Close())
	}
	defer context.AfterFunc(ctx, server.GracefulStop)()
	log.Info("provider serves", "address", in.Addr().String(), "host", o.host)
	return server.Serve(in)
}
