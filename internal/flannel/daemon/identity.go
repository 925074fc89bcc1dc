package daemon

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"weft.dev/weft/internal/flannel/extension"
	"weft.dev/weft/internal/flannel/fabric"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/link/whole"
	"weft.dev/weft/internal/reconcile"
)

// identify adds to the view the node's own backend data that does not follow from the configuration.
func (d *Daemon) identify(ctx context.Context, view *fabric.View) (err error) {
	switch b := view.Backend.(type) {
	case netconf.WireGuard:
		private, err := wireguardKey(d.options.Flags.WireGuardKeyFile)
		view.Private, view.Public = whole.Secret(private), whole.PublicKey(private.PublicKey())
		return err
	case netconf.Extension:
		d.wait("running the start command")
		view.Output, err = extension.Before(ctx, b)
	}
	return err
}

// keyMode is the mode of the key's file, as with flanneld.
const keyMode = 0o400

// wireguardKey reads the private key, or creates one if the file does not exist.
func wireguardKey(path string) (wgtypes.Key, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return newWireguardKey(path)
	}
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("read WireGuard's private key: %w", err)
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(raw) != wgtypes.KeyLen || wgtypes.Key(raw) == (wgtypes.Key{}) {
		return wgtypes.Key{}, fmt.Errorf("%s is not a private key: 32 bytes in base64, as `wg genkey` prints them; remove the file for a new key", path)
	}
	return wgtypes.Key(raw), nil
}

func newWireguardKey(path string) (wgtypes.Key, error) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return key, fmt.Errorf("make WireGuard's private key: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return key, fmt.Errorf("write WireGuard's private key: %w", err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // readable by its owner only
	if err != nil {
		return key, fmt.Errorf("write WireGuard's private key: %w", err)
	}
	_, err = file.WriteString(key.String())
	err = errors.Join(err, file.Chmod(keyMode), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return key, errors.Join(fmt.Errorf("write WireGuard's private key: %w", err), os.Remove(file.Name()))
	}
	return key, nil
}

// connected starts the commands of other nodes' leases, after running the command that follows the lease.
func (d *Daemon) connected(ctx context.Context, p *presence) error {
	if b, ok := p.view.Backend.(netconf.Extension); ok {
		d.wait("running the command that follows the lease")
		if err := extension.After(ctx, b, p.config.Network, p.own.Lease); err != nil {
			return err
		}
	}
	// It waits for no owner: a failing command is retried, and delays nothing else.
	return d.engines.commands.Start(ctx, map[reconcile.Owner]map[extension.Key]extension.Item{})
}
