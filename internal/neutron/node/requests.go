package node

import (
	"weft.dev/weft/internal/cni"
)

// unserved returns an error for what a pod asks for and the network does not have, so that a pod never runs without it.
func unserved(req *cni.Request) error {
	if req.NetConf == nil {
		return nil
	}
	limits, err := cni.ParseBandwidth(req.NetConf.RuntimeConfig.Bandwidth)
	if err != nil {
		return err //nolint:wrapcheck // it names the field and has its code
	}
	ports, err := cni.ParsePortMappings(req.NetConf.RuntimeConfig.PortMappings)
	if err != nil {
		return err //nolint:wrapcheck // it names the field and has its code
	}
	pod := req.Args.PodNamespace + "/" + req.Args.PodName
	switch {
	case limits.Limited():
		return cni.Errorf(cni.CodeRefused, "pod %s has a bandwidth annotation, and Neutron networks limit no pod's bandwidth: remove kubernetes.io/ingress-bandwidth and kubernetes.io/egress-bandwidth", pod)
	case len(ports) > 0:
		return cni.Errorf(cni.CodeRefused, "pod %s has host port %d, and pods on Neutron networks have none: remove hostPort, or use a Service of type LoadBalancer", pod, ports[0].Port)
	}
	return nil
}
