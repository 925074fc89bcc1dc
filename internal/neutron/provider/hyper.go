package provider

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/plug"
)

// Container runtimes that KubeStack's clients name.
const (
	runtimeDocker = "docker"
	runtimeHyper  = "hyper"
)

// hyperInterface is an interface in a pod specification of HyperContainer.
type hyperInterface struct {
	Bridge  string `json:"bridge"`
	IfName  string `json:"ifname"`
	MAC     string `json:"mac"`
	IP      string `json:"ip"`
	Gateway string `json:"gateway"`
}

// writeHyperSpec adds the interface and the network's name servers to the pod's specification, which the runtime reads when it starts the
// pod. Other content of the file stays.
func writeHyperSpec(dir string, req podRequest, port plug.Port, network *cloud.HeldNetwork) error {
	path := filepath.Join(dir, req.GetPodName()+"_"+req.GetNamespace())
	spec := map[string]json.RawMessage{}
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &spec)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read the pod specification %s: %w", path, err)
	}
	if spec == nil {
		spec = map[string]json.RawMessage{} // the file has null
	}
	var dns []string
	for _, s := range network.Held {
		dns = append(dns, s.DNSNameservers...)
	}
	var before []string
	if json.Unmarshal(spec["dns"], &before) == nil {
		for _, one := range before {
			if !slices.Contains(dns, one) {
				dns = append(dns, one)
			}
		}
	}
	const x = 11 // characters of the port's id in device names
	face := hyperInterface{Bridge: "qbr" + port.ID[:x], IfName: "tap" + port.ID[:x], MAC: port.MAC.String(), IP: port.Addrs[0].String()}
	if port.Gateway.IsValid() {
		face.Gateway = port.Gateway.String()
	}
	for field, value := range map[string]any{"interfaces": []hyperInterface{face}, "dns": dns} {
		if spec[field], err = json.Marshal(value); err != nil {
			return fmt.Errorf("encode the pod specification %s: %w", path, err)
		}
	}
	if raw, err = json.MarshalIndent(spec, "", "  "); err != nil {
		return fmt.Errorf("encode the pod specification %s: %w", path, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of pod specifications: %w", err)
	}
	if err := os.WriteFile(path+".new", raw, 0o600); err != nil {
		return fmt.Errorf("write the pod specification %s: %w", path, err)
	}
	return os.Rename(path+".new", path)
}
