package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"
)

// DefaultCache is the directory where runtimes store the results of ADD (CacheDir of libcni).
const DefaultCache = "/var/lib/cni"

// maxCached is the maximum size of a file of the cache, in bytes.
const maxCached = 1 << 20

// Cached is what the runtime stores about a successful ADD.
type Cached struct {
	ContainerID string
	IfName      string
	// Netns is the path of the sandbox's namespace.
	Netns string
	Args  Args
	// Result is the answer of the network's last plugin.
	Result *types100.Result
}

// cachedFile is libcni's format (cachedInfo, kind cniCacheV1).
type cachedFile struct {
	Kind        string          `json:"kind"`
	ContainerID string          `json:"containerId"`
	IfName      string          `json:"ifName"`
	Netns       string          `json:"netns"`
	Args        [][2]string     `json:"cniArgs"`
	Result      json.RawMessage `json:"result"`
}

// ReadCache returns the entries of the runtime's cache. It skips other files. A cache that does not exist is empty.
func ReadCache(dir string) ([]Cached, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the runtime's results: %w", err)
	}
	defer root.Close() //nolint:errcheck // nothing was written
	entries, err := fs.ReadDir(root.FS(), "results")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the runtime's results: %w", err)
	}
	var all []Cached
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		data, err := readBounded(root, "results/"+entry.Name())
		if err != nil {
			continue // it was just deleted, or is not an entry
		}
		if cached, err := ParseCached(data); err == nil {
			all = append(all, cached)
		}
	}
	return all, nil
}

func readBounded(root *os.Root, name string) ([]byte, error) {
	file, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // nothing was written
	data, err := io.ReadAll(io.LimitReader(file, maxCached+1))
	if err == nil && len(data) > maxCached {
		err = fmt.Errorf("%s is larger than %d bytes", name, maxCached)
	}
	return data, err
}

// ParseCached parses a file of the runtime's cache.
func ParseCached(data []byte) (Cached, error) {
	var file cachedFile
	if err := json.Unmarshal(data, &file); err != nil {
		return Cached{}, fmt.Errorf("the runtime's result: %w", err)
	}
	if file.Kind != "cniCacheV1" || file.ContainerID == "" || file.IfName == "" {
		return Cached{}, fmt.Errorf("the runtime's result: kind %.32q, container %.80q, interface %.16q", file.Kind, file.ContainerID, file.IfName)
	}
	pairs := make([]string, 0, len(file.Args))
	for _, pair := range file.Args {
		pairs = append(pairs, pair[0]+"="+pair[1])
	}
	args, err := ParseArgs(strings.Join(pairs, ";"))
	if err != nil {
		return Cached{}, err
	}
	if len(file.Result) == 0 || isNull(file.Result) {
		return Cached{}, fmt.Errorf("the runtime's result of container %.80q: there is none", file.ContainerID)
	}
	var version struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(file.Result, &version); err != nil {
		return Cached{}, fmt.Errorf("the runtime's result of container %.80q: %w", file.ContainerID, err)
	}
	conf := NetConf{RawPrevResult: file.Result}
	conf.CNIVersion = version.CNIVersion
	result, err := conf.PrevResult()
	if err != nil {
		return Cached{}, fmt.Errorf("the runtime's result of container %.80q: %w", file.ContainerID, err)
	}
	return Cached{ContainerID: file.ContainerID, IfName: file.IfName, Netns: file.Netns, Args: args, Result: result}, nil
}
