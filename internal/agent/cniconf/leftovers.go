package cniconf

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"weft.dev/weft/internal/keep"
)

const (
	// sdnType is the CNI plugin type of OpenShift SDN.
	sdnType = "openshift-sdn"
	// confFiles and confBytes bound how much of the runtime's configurations is read.
	confFiles = 100
	confBytes = 64 << 10
)

// Leftovers are the configurations of OpenShift SDN in the container runtime's configuration folder.
type Leftovers struct {
	// Dir is that folder.
	Dir string
	// Changed is called when the set of leftovers has changed.
	Changed func()

	mu    sync.Mutex
	confs []string
}

// Thing returns a keep.Thing that watches the folder.
func (l *Leftovers) Thing() keep.Thing {
	return keep.Thing{Name: "leftovers of OpenShift SDN", Path: filepath.Join(l.Dir, Name), Restore: l.look}
}

// look reads the runtime's configurations. It restores nothing.
func (l *Leftovers) look() (string, error) {
	found := leftoverConfs(l.Dir)
	l.mu.Lock()
	same := slices.Equal(l.confs, found)
	l.confs = found
	l.mu.Unlock()
	if !same {
		l.Changed()
	}
	return "", nil
}

// All returns a description of each leftover.
func (l *Leftovers) All() []string {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.confs)
}

// leftoverConfs returns which files of a folder of CNI configurations are from OpenShift SDN, and which have a CNI version that Weft's
// plugin does not support.
func leftoverConfs(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // the keeper of Weft's own configuration reports it
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool {
		return e.Name() == Name || !e.Type().IsRegular() || !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name()))
	})
	var found []string
	for _, entry := range entries[:min(len(entries), confFiles)] {
		path := filepath.Join(dir, entry.Name())
		if why := leftoverConf(path); why != "" {
			found = append(found, path+": "+why)
		}
	}
	return found
}

func leftoverConf(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close() //nolint:errcheck // nothing was written
	data, err := io.ReadAll(io.LimitReader(file, confBytes))
	var conf struct {
		CNIVersion string       `json:"cniVersion"`
		Type       string       `json:"type"`
		Plugins    []pluginConf `json:"plugins"`
	}
	if err != nil || json.Unmarshal(data, &conf) != nil {
		return ""
	}
	if conf.Type == sdnType || slices.ContainsFunc(conf.Plugins, func(p pluginConf) bool { return p.Type == sdnType }) {
		return "a CNI configuration of OpenShift SDN, which does not work without its daemon: remove it"
	}
	if conf.CNIVersion == "0.1.0" || conf.CNIVersion == "0.2.0" {
		return "a CNI configuration of version " + conf.CNIVersion + ": remove it, or write it for 0.3.1 or later"
	}
	return ""
}
