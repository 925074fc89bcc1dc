package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"

	"weft.dev/weft/internal/flannel/delegate"
)

// cache is the file with the configuration that was passed on for one attachment.
//
// flannel's own plugin names the file after the container alone, so that a second interface's file replaces the first's. Here the name also
// has the interface, after an @, which a container's name cannot contain. The file of eth0 is named as flannel's: so either plugin removes
// what the other has created. It ends with a line break, and flannel's does not: that may be any interface's.
type cache struct {
	dir, container, ifName, network string
	// unnamed reports that the file is known to be flannel's plugin's: ifName is a guess.
	unnamed bool
}

// usual is the interface whose file is named as flannel's.
const usual = "eth0"

func cacheOf(conf *delegate.Config, args *skel.CmdArgs) cache {
	return cache{dir: conf.DataDir, container: args.ContainerID, ifName: args.IfName, network: conf.Name}
}

func (c cache) path() string {
	if c.ifName == usual {
		return c.legacy()
	}
	return filepath.Join(c.dir, c.container+"@"+c.ifName)
}

func (c cache) legacy() string { return filepath.Join(c.dir, c.container) }

// write stores the configuration: it is on the disk before the delegate runs.
func (c cache) write(config []byte) error {
	const dirMode = 0o700
	if err := os.MkdirAll(c.dir, dirMode); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(c.dir, ".new-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = temporary.Write(delegate.CacheFile(config))
	if err = errors.Join(err, temporary.Sync(), temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), c.path())
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary.Name()))
	}
	return nil
}

// read returns the configuration and the delegate's type; fs.ErrNotExist if there is none.
func (c cache) read() (config []byte, kind string, err error) {
	config, err = os.ReadFile(c.path())
	if errors.Is(err, fs.ErrNotExist) && c.ifName != usual {
		return c.readLegacy()
	}
	if err != nil {
		return nil, "", err
	}
	_, kind, err = identify(c.path(), config)
	return config, kind, err
}

// readLegacy returns what flannel's plugin stored for the container, if it is of this network. A file of Weft's is that of eth0: it stays,
// however often the DEL of another interface is repeated.
func (c cache) readLegacy() ([]byte, string, error) {
	config, err := os.ReadFile(c.legacy())
	if err != nil {
		return nil, "", err
	}
	network, kind, err := identify(c.legacy(), config)
	if err == nil && (network != c.network || delegate.OfWeft(config)) {
		err = fs.ErrNotExist
	}
	return config, kind, err
}

func identify(path string, config []byte) (network, kind string, err error) {
	var t struct{ Name, Type string }
	if err := json.Unmarshal(config, &t); err != nil {
		return "", "", fmt.Errorf("%s: not a delegate's configuration: %w", path, err)
	}
	if t.Type == "" || strings.ContainsAny(t.Type, `/\`) {
		return "", "", fmt.Errorf("%s: type %q is not the name of a plugin", path, t.Type)
	}
	return t.Name, t.Type, nil
}

// remove removes the configuration. If a file remains, a later DEL runs and finds nothing.
func (c cache) remove() {
	if os.Remove(c.path()) != nil && c.ifName != usual {
		_ = os.Remove(c.legacy())
	}
}

// needed reports whether a file is that of a valid attachment. One of flannel's plugin may be that of any interface of its container without a
// file of its own.
func (c cache) needed(valid []delegate.Attachment, files map[delegate.Attachment]cache) bool {
	return slices.ContainsFunc(valid, func(v delegate.Attachment) bool {
		_, own := files[v]
		return v.ContainerID == c.container && (v.IfName == c.ifName || c.unnamed && !own)
	})
}

// caches returns a network's files, by attachment.
func caches(conf *delegate.Config) (map[delegate.Attachment]cache, error) {
	entries, err := os.ReadDir(conf.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[delegate.Attachment]cache{}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") || !entry.Type().IsRegular() {
			continue
		}
		container, ifName, named := strings.Cut(entry.Name(), "@")
		if !named {
			ifName = usual
		}
		c := cache{dir: conf.DataDir, container: container, ifName: ifName, network: conf.Name}
		config, err := os.ReadFile(c.path())
		if err != nil {
			continue // removed meanwhile
		}
		if network, _, err := identify(c.path(), config); err != nil || network != conf.Name {
			continue
		}
		c.unnamed = !named && !delegate.OfWeft(config)
		out[delegate.Attachment{ContainerID: container, IfName: ifName}] = c
	}
	return out, nil
}
