// Package plan has the types that the controller's parts plan with: writes, and problems of objects. Compilers of plans are pure, and use
// no other package of the controller.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Writes are changes to objects of one kind, in the order in which they were decided.
type Writes[T any] struct {
	// Delete has the objects to delete, as they were read.
	Delete []T
	// Update has the objects in their new state, with the resource version at which they were read.
	Update []T
	// Create has the objects to create.
	Create []T
}

// Empty reports whether there is nothing to write.
func (w Writes[T]) Empty() bool { return len(w.Delete)+len(w.Update)+len(w.Create) == 0 }

// Object names an object.
type Object struct {
	// APIVersion is the object's group and version. Empty: v1 for the kinds of the core API, otherwise that of the part.
	APIVersion string
	// Kind is the object's kind.
	Kind string
	// Namespace is the object's namespace; empty for a cluster-scoped object.
	Namespace string
	// Name is the object's name.
	Name string
	// UID is the object's UID.
	UID types.UID
}

// Problem is something that an administrator has to correct. It is reported on its object.
type Problem struct {
	// Object is the object with the problem.
	Object
	// Reason is the reason in the event and the condition, in CamelCase.
	Reason string
	// Message says what is wrong and what to do.
	Message string
}

// ByAge returns items sorted by the creation time of their objects, so that equal clusters result in equal plans.
func ByAge[T any](items []T, key func(T) (time.Time, string)) []T {
	return slices.SortedFunc(slices.Values(items), func(a, b T) int {
		aCreated, aName := key(a)
		bCreated, bName := key(b)
		return cmp.Or(aCreated.Compare(bCreated), cmp.Compare(aName, bName))
	})
}

// Summary joins the messages of problems into one of bounded length: the first ten, and the number of the others.
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
