package plugin

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"weft.dev/weft/internal/flannel/delegate"
)

// gc removes what is stored of attachments that the runtime does not list, and makes the delegate do the same. A request without a list
// removes nothing.
func (p *plugin) gc(args *skel.CmdArgs) error {
	if _, serves, err := agentServes(args.StdinData); err != nil || serves {
		return orErr(err, p.agent.GC, args)
	}
	conf, err := parse(args)
	if err != nil {
		return err
	}
	if conf.ValidAttachments == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), delegateTimeout)
	defer cancel()
	kept, err := caches(conf)
	if err != nil {
		return types.NewError(types.ErrIOFailure, "listing "+conf.DataDir, err.Error())
	}
	var errs []error
	for _, c := range kept {
		if c.needed(conf.ValidAttachments, kept) {
			continue
		}
		if err := c.collect(ctx, args.Path); err != nil {
			errs = append(errs, err)
		}
	}
	if err := delegateGC(ctx, conf, args.Path); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return types.NewError(types.ErrInternal, "GC: "+err.Error(), "")
	}
	return nil
}

// collect makes the delegate remove an attachment.
func (c cache) collect(ctx context.Context, path string) error {
	config, kind, err := c.read()
	if err != nil {
		return err
	}
	_, err = execute(ctx, kind, path, config, "CNI_COMMAND=DEL", "CNI_CONTAINERID="+c.container, "CNI_IFNAME="+c.ifName, "CNI_NETNS=", "CNI_ARGS=")
	if err != nil {
		return wrap("DEL by delegate "+kind+" of "+c.ifName+" of "+c.container, err)
	}
	c.remove()
	return nil
}

// delegateGC passes the request on. Without subnet.env there is no configuration to pass on; then the delegate's own garbage is left for
// the next time.
func delegateGC(ctx context.Context, conf *delegate.Config, path string) error {
	config, err := compile(conf)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	if known, err := speaks(ctx, conf.Type(), path); err != nil || !known {
		return err
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(config, &fields); err != nil {
		return err
	}
	if fields["cni.dev/valid-attachments"], err = json.Marshal(conf.ValidAttachments); err != nil {
		return err
	}
	if config, err = json.Marshal(fields); err != nil {
		return err
	}
	if err := delegateTo(ctx, "GC", conf.Type(), path, config); err != nil {
		return wrap("GC by delegate "+conf.Type(), err)
	}
	return nil
}
