// Package bandwidth reads what pods say of their bandwidth: the annotations kubernetes.io/ingress-bandwidth and
// kubernetes.io/egress-bandwidth, as kubelets and OpenShift SDN know them. Values only.
package bandwidth

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// The annotations of pods.
const (
	AnnotationIngress = "kubernetes.io/ingress-bandwidth"
	AnnotationEgress  = "kubernetes.io/egress-bandwidth"
)

// The least and the most that a limit may be, in bits a second (k8s.io/kubernetes/pkg/util/bandwidth).
const (
	Min = 1_000
	Max = 1_000_000_000_000_000
)

// maxLength bounds a value, in bytes: a quantity with all digits that count is far shorter.
const maxLength = 64

// maxExponent bounds the digits of an exponent.
const maxExponent = 2

// Limits are what a pod may receive and send, in bits of IP packets a second; 0: it is not limited.
type Limits struct {
	Ingress, Egress uint64
}

// Parse returns what a pod's annotations say. An error names each annotation that says something else than a quantity from 1k to
// 1P; nothing of such a pod is used.
func Parse(annotations map[string]string) (Limits, error) {
	ingress, wrongIn := parse(annotations, AnnotationIngress)
	egress, wrongOut := parse(annotations, AnnotationEgress)
	if err := errors.Join(wrongIn, wrongOut); err != nil {
		return Limits{}, err
	}
	return Limits{Ingress: ingress, Egress: egress}, nil
}

func parse(annotations map[string]string, name string) (uint64, error) {
	text, says := annotations[name]
	if !says {
		return 0, nil
	}
	const help = "it is a quantity in bits a second from 1k to 1P, as 10M"
	if len(text) > maxLength {
		return 0, fmt.Errorf("annotation %s: %d bytes long: %s", name, len(text), help)
	}
	if i := strings.IndexAny(text, "eE"); i >= 0 && len(strings.TrimLeft(text[i+1:], "+-")) > maxExponent {
		// Numbers with such exponents are written out in full where they are compared: that takes the time and memory that they say.
		return 0, fmt.Errorf("annotation %s: %q is out of range: %s", name, text, help)
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("annotation %s: %q: %s", name, text, help)
	}
	if quantity.Cmp(*resource.NewQuantity(Min, resource.DecimalSI)) < 0 || quantity.Cmp(*resource.NewQuantity(Max, resource.DecimalSI)) > 0 {
		return 0, fmt.Errorf("annotation %s: %q is out of range: %s", name, text, help)
	}
	return uint64(quantity.Value()), nil //nolint:gosec // within the range
}
