// Package plan has the values that a part of the controller plans with: writes, and problems of objects. Compilers of plans are
// pure, and use no other package of the controller.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Writes are changes to objects of one kind, each in the order it was decided.
type Writes[T any] struct {
	// Delete holds objects to delete, as they were read.
	Delete []T
	// Update holds objects as they should become, with the resource version they were read at.
	Update []T
	// Create holds objects that do not exist.
	Create []T
}

// Empty reports whether there is nothing to write.
func (w Writes[T]) Empty() bool { return len(w.Delete)+len(w.Update)+len(w.Create) == 0 }

// Object names an object.
type Object struct {
	// APIVersion is the object's group and version. Empty: v1 for the kinds of Kubernetes' core, else that of the part.
	APIVersion string
	// Kind is the object's kind.
	Kind string
	// Namespace is the object's; empty for a cluster-scoped one.
	Namespace string
	// Name is the object's name.
	Name string
	// UID is the object's UID.
	UID types.UID
}

// Problem is what an administrator has to correct. It is reported on the object that it is about.
type Problem struct {
	// Object is what the problem is about.
	Object
	// Reason is the reason of the event and the condition, in CamelCase.
	Reason string
	// Message says what is wrong and what to do.
	Message string
}

// ByAge returns items in the order in which their objects were created, so that equal clusters give equal plans.
func ByAge[T any](items []T, key func(T) (time.Time, string)) []T {
	return slices.SortedFunc(slices.Values(items), func(a, b T) int {
		aCreated, aName := key(a)
		bCreated, bName := key(b)
		return cmp.Or(aCreated.Compare(bCreated), cmp.Compare(aName, bName))
	})
}

// Summary joins the messages of problems into one of bounded length: the first ten, and how many more there are.
func Summary(problems []Problem) string {
	const most = 10
	lines := make([]string, 0, most+1)
	for i, p := range problems {
		if i == most {
			lines = append(lines, fmt.Sprintf("and %d more", len(problems)-most))
			break
		}
		lines = append(lines, p.Message)
	}
	return strings.Join(lines, "; ")
}

// About returns the problems of one cluster-scoped object.
func About(problems []Problem, kind, name string) []Problem {
	var found []Problem
	for _, p := range problems {
		if p.Kind == kind && p.Name == name {
			found = append(found, p)
		}
	}
	return found
}
