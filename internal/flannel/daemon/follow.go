package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weft.dev/weft/internal/nft"
)

// follow repairs foreign changes until ctx ends or a new generation has to begin.
func (d *Daemon) follow(ctx context.Context, p *presence, failed <-chan error) error {
	d.engines.devices.Attend(p.view.Uplink.Index, p.view.Uplink.Name)
	changes, err := d.engines.devices.Watch(ctx)
	if err != nil {
		return err
	}
	drifts, err := d.engines.nft.Monitor(ctx)
	if err != nil {
		return err
	}
	p.watched.rules()
	d.engines.links.Resync() // changes before the watch began
	p.offload.due()
	check := time.NewTicker(checkPeriod)
	defer check.Stop()
	var settled, look <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case err := <-p.restart:
			return &restartError{reason: err}
		case _, open := <-changes:
			if !open {
				return &restartError{reason: errors.New("events of links ended")}
			}
			if settled == nil {
				settled = time.After(settle)
			}
		case drift, open := <-drifts:
			if err := d.drifted(drift, open); err != nil {
				return err
			}
			look = d.engines.firewall.soon(look, &drift)
		case <-look:
			look = nil
			d.engines.firewall.look(ctx)
			d.engines.rules.Resync()
		case <-settled:
			settled = nil
			if err := d.linksChanged(p); err != nil {
				return err
			}
		case <-check.C:
			d.verify(ctx, p)
		}
	}
}

// verify compares everything, for changes without an event.
func (d *Daemon) verify(ctx context.Context, p *presence) {
	d.engines.links.Resync()
	d.engines.rules.Resync()
	d.relink(p)
	p.offload.due()
	if d.engines.firewall.concerned(&nft.Drift{}) {
		d.engines.firewall.look(ctx)
	}
}

// linksChanged repairs links, and ends the generation if the uplink has changed.
func (d *Daemon) linksChanged(p *presence) error {
	d.engines.links.Resync()
	if err := d.moved(p); err != nil {
		return &restartError{reason: err}
	}
	d.relink(p)
	return nil
}

// relink follows the ranges that the uplink reaches without a gateway, if the way to other nodes depends on them.
func (d *Daemon) relink(p *presence) {
	if !p.view.Direct() {
		return
	}
	links, err := linkRanges(p.view.Uplink.Index)
	if err != nil { // the uplink is gone at the moment
		return
	}
	d.peers.relink(p, links)
}

// drifted repairs the rules if a drift concerns them.
func (d *Daemon) drifted(drift nft.Drift, open bool) error {
	if !open || drift.Err != nil {
		return &restartError{reason: fmt.Errorf("events of nftables ended: %w", errors.Join(drift.Err))}
	}
	if drift.All || drift.InCare {
		d.engines.rules.Resync()
	}
	return nil
}

// moved returns an error if the node has another uplink than the one in use.
func (d *Daemon) moved(p *presence) error {
	now, err := look(p.config, p.uplink)
	if err != nil {
		return nil //nolint:nilerr // there is none at the moment; entries stay as they are until there is
	}
	if now.Uplink != p.view.Uplink {
		return fmt.Errorf("the interface to other nodes changed from %+v to %+v", p.view.Uplink, now.Uplink)
	}
	return nil
}
