package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
)

// Section is a network's part of a report. If Collect returns nil, the network is not configured and not in the report.
type Section struct {
	// Name is the network's name, as in NodeNetwork.
	Name string
	// Schemes register the kinds that Collect reads, beyond those of Kubernetes.
	Schemes []func(*runtime.Scheme) error
	// Kinds are the kinds that Collect reads. A change of an object of these kinds causes a new report during `weft status --wait`.
	Kinds []Kind
	// Collect reads the facts of the section; nil if the network is not configured. The reader records what cannot be read, as a problem of
	// the report.
	Collect func(ctx context.Context, from *Reader) any
	// Judge makes the section's report from the result of Collect. It is pure.
	Judge func(collected any, all *Facts) SectionReport
}

// Kind is a kind of object that a section reads.
type Kind struct {
	// Object is an empty object of the kind.
	Object client.Object
	// Version and Name are the group, version and kind.
	Version schema.GroupVersion
	Name    string
	// Namespaced says that objects of the kind have a namespace.
	Namespaced bool
}

// SectionReport is the report of a section.
type SectionReport struct {
	// Line describes the network in one line: its mode, its ranges, the number of objects.
	Line string
	// Facts are the same for programs. Nil: none.
	Facts any
	// Problems are errors, Warnings are worth knowing.
	Problems, Warnings []Finding
}

// Collected is what a section has read.
type Collected struct {
	Section Section
	Facts   any
}

// Reader reads objects for a section. A kind that is not defined has no objects.
type Reader struct {
	reader client.Reader
	facts  *Facts
}

// Namespace returns the namespace of the installation.
func (r *Reader) Namespace() string { return r.facts.Namespace }

// Get reads one object, and reports whether it exists.
func (r *Reader) Get(ctx context.Context, kind string, key client.ObjectKey, into client.Object) bool {
	return r.note(kind, r.reader.Get(ctx, key, into))
}

// List reads objects, and reports whether that succeeded.
func (r *Reader) List(ctx context.Context, kind string, into client.ObjectList, options ...client.ListOption) bool {
	return r.note(kind, r.reader.List(ctx, into, options...))
}

func (r *Reader) note(kind string, err error) bool {
	if err != nil && !undefined(err) && !apierrors.IsNotFound(err) {
		r.facts.Unreadable = append(r.facts.Unreadable, Unreadable{kind, err})
	}
	return err == nil
}

// addToScheme registers the kinds of the sections.
func addToScheme(sections []Section, scheme *runtime.Scheme) error {
	var errs []error
	for _, s := range sections {
		for _, add := range s.Schemes {
			if err := add(scheme); err != nil {
				errs = append(errs, fmt.Errorf("network %s: %w", s.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// sections adds the reports of the networks.
func (j *judgement) sections() {
	for _, c := range j.facts.Sections {
		said := c.Section.Judge(c.Facts, j.facts)
		j.report.Networks = append(j.report.Networks, NetworkReport{Name: c.Section.Name, Line: said.Line, Facts: said.Facts})
		j.report.Problems = append(j.report.Problems, said.Problems...)
		j.report.Warnings = append(j.report.Warnings, said.Warnings...)
	}
}

// elsewhere reports whether pods use a network other than the overlay.
func (j *judgement) elsewhere() bool { return j.facts.Network == nil && len(j.facts.Sections) > 0 }

// nodeSections adds the problems that a node reports of its networks. It leaves out the overlay, whose HostSubnet has more details.
func (j *judgement) nodeSections(node string) {
	at := slices.IndexFunc(j.facts.NodeNetworks, func(n weftv1.NodeNetwork) bool { return n.Name == node })
	if at < 0 {
		return
	}
	for i := range j.facts.NodeNetworks[at].Status.Networks {
		section := &j.facts.NodeNetworks[at].Status.Networks[i]
		if section.Name == weftv1.NetworkOverlay {
			continue
		}
		for _, c := range section.Conditions {
			if c.Status == metav1.ConditionFalse {
				j.problem("node/"+node, "kubectl get nodenetwork "+node+" -o yaml; the log of the agent on that node",
					"network %s: %s: %s", section.Name, c.Type, orReason(&c))
			}
		}
	}
}

func orReason(c *metav1.Condition) string {
	if c.Message == "" {
		return c.Reason
	}
	return c.Message
}

// nodeNetworkReady reports whether a node serves pods of a network other than the overlay.
func (j *judgement) nodeNetworkReady(node string) bool {
	return slices.ContainsFunc(j.facts.NodeNetworks, func(n weftv1.NodeNetwork) bool {
		return n.Name == node && slices.ContainsFunc(n.Status.Networks, func(s weftv1.NodeNetworkSection) bool {
			return s.Name != weftv1.NetworkOverlay && meta.IsStatusConditionTrue(s.Conditions, weftv1.NetworkReady)
		})
	})
}

// owned reports whether a definition belongs to a group that a report reads.
func (c *Cluster) owned(definition string) bool {
	for _, s := range c.sections {
		for _, kind := range s.Kinds {
			if strings.HasSuffix(definition, "."+kind.Version.Group) {
				return true
			}
		}
	}
	return strings.HasSuffix(definition, "."+weftv1.GroupName)
}
