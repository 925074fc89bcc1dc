package cni

import "encoding/json"

// AnnotationAssignMacvlan is the only pod annotation that the agent reads (AnnotationAssignMacvlan of api/openshift/v1, which the plugin
// does not import, to remain small).
const AnnotationAssignMacvlan = "pod.network.openshift.io/assign-macvlan"

const (
	annotationsKey = "io.kubernetes.cri.pod-annotations"
	// maxAnnotation is longer than every valid value. A longer value is cut, and the agent refuses it as invalid.
	maxAnnotation = 64
)

// WithoutAnnotations returns a network configuration without the annotations that the agent does not read for a command: a pod may have
// 256 KiB of them, which exceed the limit of a request when encoded as JSON. It returns a configuration without annotations unchanged.
// The configuration must be valid for ParseNetConf.
func WithoutAnnotations(command Command, config []byte) ([]byte, error) {
	const runtimeKey = "runtimeConfig"
	var conf, runtime map[string]json.RawMessage
	if err := json.Unmarshal(config, &conf); err != nil {
		return nil, Errorf(CodeDecode, "network configuration: %w", err)
	}
	if raw := conf[runtimeKey]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &runtime); err != nil {
			return nil, Errorf(CodeDecode, "network configuration: runtimeConfig: %w", err)
		}
	}
	if len(runtime[annotationsKey]) == 0 {
		return config, nil
	}
	var all map[string]string
	if err := json.Unmarshal(runtime[annotationsKey], &all); err != nil {
		return nil, Errorf(CodeDecode, "network configuration: runtimeConfig: %s: %w", annotationsKey, err)
	}
	delete(runtime, annotationsKey)
	if value, has := all[AnnotationAssignMacvlan]; has && command == CommandAdd {
		kept, err := json.Marshal(map[string]string{AnnotationAssignMacvlan: value[:min(len(value), maxAnnotation)]})
		if err != nil {
			return nil, Errorf(CodeInternal, "network configuration: %w", err)
		}
		runtime[annotationsKey] = kept
	}
	rest, err := json.Marshal(runtime)
	if err == nil {
		conf[runtimeKey] = rest
		rest, err = json.Marshal(conf)
	}
	if err != nil {
		return nil, Errorf(CodeInternal, "network configuration: %w", err)
	}
	return rest, nil
}
