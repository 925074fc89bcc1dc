package cni

import (
	"encoding/json"
	"errors"
	"fmt"
)

// The minimum and the maximum of a limit of Bandwidth, in bits per second: those of Kubernetes' annotations, 1k and 1P.
const (
	MinBandwidth uint64 = 1_000
	MaxBandwidth uint64 = 1_000_000_000_000_000
)

// Bandwidth limits what a pod receives (Ingress) and sends (Egress), in bits of IP packets per second; 0: no limit.
type Bandwidth struct {
	Ingress uint64 `json:"ingress,omitempty"`
	Egress  uint64 `json:"egress,omitempty"`
}

// Limited reports whether at least one direction is limited.
func (b Bandwidth) Limited() bool { return b != Bandwidth{} }

// Valid reports whether ParseBandwidth can have returned b.
func (b Bandwidth) Valid() bool { return validLimit(b.Ingress) && validLimit(b.Egress) }

func validLimit(bits uint64) bool { return bits == 0 || bits >= MinBandwidth && bits <= MaxBandwidth }

// ParseBandwidth parses RuntimeConfig.Bandwidth. It ignores bursts: for Kubernetes' annotations, runtimes pass "no limit" there, some 4
// Gbit. An error has CodeInvalidConfig, and names each invalid field and the annotation that runtimes take it from.
func ParseBandwidth(raw json.RawMessage) (Bandwidth, error) {
	if len(raw) == 0 || isNull(raw) {
		return Bandwidth{}, nil
	}
	const field = "network configuration: runtimeConfig.bandwidth"
	var said struct { // containerd writes IngressRate, CRI-O and the specification ingressRate: encoding/json accepts both
		IngressRate, EgressRate json.RawMessage
	}
	if err := json.Unmarshal(raw, &said); err != nil {
		return Bandwidth{}, Errorf(CodeInvalidConfig, "%s: %w", field, err)
	}
	ingress, wrongIn := parseLimit("ingress", said.IngressRate)
	egress, wrongOut := parseLimit("egress", said.EgressRate)
	if err := errors.Join(wrongIn, wrongOut); err != nil {
		return Bandwidth{}, Errorf(CodeInvalidConfig, "%s: %w", field, err)
	}
	return Bandwidth{Ingress: ingress, Egress: egress}, nil
}

// Bandwidth returns the limits in the runtime's request, which the runtime takes from the pod's annotations. An error names the pod.
func (r *Request) Bandwidth() (Bandwidth, error) {
	if r.NetConf == nil {
		return Bandwidth{}, nil
	}
	limits, err := ParseBandwidth(r.NetConf.RuntimeConfig.Bandwidth)
	if err != nil {
		return limits, fmt.Errorf("pod %s/%s: %w", r.Args.PodNamespace, r.Args.PodName, err)
	}
	return limits, nil
}

func parseLimit(direction string, raw json.RawMessage) (uint64, error) {
	if len(raw) == 0 || isNull(raw) {
		return 0, nil
	}
	var bits uint64
	if err := json.Unmarshal(raw, &bits); err != nil || !validLimit(bits) {
		return 0, fmt.Errorf("%sRate, of the annotation kubernetes.io/%s-bandwidth: %.64s: it is from 1k (%d) to 1P (%d) bits a second",
			direction, direction, raw, MinBandwidth, MaxBandwidth)
	}
	return bits, nil
}
