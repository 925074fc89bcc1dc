package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Selector selects by labels. The zero value selects everything. Its form is canonical: selectors with the same requirements in another
// order are equal.
type Selector struct {
	requirements []requirement
	text         string
}

type operator uint8

const (
	in operator = iota
	notIn
	exists
	doesNotExist
)

type requirement struct {
	key      string
	operator operator
	// values are sorted.
	values []string
}

// String returns the selector as "{app=web,tier in (a,b),!legacy}"; everything is "{}".
func (s Selector) String() string { return "{" + s.text + "}" }

// Matches reports whether the selector selects these labels.
func (s Selector) Matches(labels map[string]string) bool {
	for i := range s.requirements {
		if !s.requirements[i].matches(labels) {
			return false
		}
	}
	return true
}

// needsLabel reports whether the selector requires a label to exist.
func (s Selector) needsLabel() bool {
	return slices.ContainsFunc(s.requirements, func(r requirement) bool { return r.operator == in || r.operator == exists })
}

func (r *requirement) matches(labels map[string]string) bool {
	value, there := labels[r.key]
	switch r.operator {
	case in:
		return there && r.has(value)
	case notIn:
		return !there || !r.has(value)
	case exists:
		return there
	default:
		return !there
	}
}

func (r *requirement) has(value string) bool {
	_, found := slices.BinarySearch(r.values, value)
	return found
}

func (r *requirement) String() string {
	switch {
	case r.operator == in && len(r.values) == 1:
		return r.key + "=" + r.values[0]
	case r.operator == in:
		return r.key + " in (" + strings.Join(r.values, ",") + ")"
	case r.operator == notIn:
		return r.key + " notin (" + strings.Join(r.values, ",") + ")"
	case r.operator == exists:
		return r.key
	default:
		return "!" + r.key
	}
}

// selector parses a label selector. An error names the field below path.
func (p *parser) selector(obj *metav1.LabelSelector, path string) (Selector, error) {
	var list []requirement
	add := func(key string, op metav1.LabelSelectorOperator, values []string, field string) error {
		if err := p.spend(1+len(values), field); err != nil {
			return err
		}
		r, err := newRequirement(key, op, values)
		if err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		list = append(list, r)
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(obj.MatchLabels)) {
		if err := add(key, metav1.LabelSelectorOpIn, []string{obj.MatchLabels[key]}, path+".matchLabels"); err != nil {
			return Selector{}, err
		}
	}
	for i := range obj.MatchExpressions {
		e := &obj.MatchExpressions[i]
		if err := add(e.Key, e.Operator, e.Values, fmt.Sprintf("%s.matchExpressions[%d]", path, i)); err != nil {
			return Selector{}, err
		}
	}
	return newSelector(list), nil
}

func newRequirement(key string, op metav1.LabelSelectorOperator, values []string) (requirement, error) {
	known := map[metav1.LabelSelectorOperator]struct {
		operator operator
		checked  selection.Operator
	}{
		metav1.LabelSelectorOpIn:           {in, selection.In},
		metav1.LabelSelectorOpNotIn:        {notIn, selection.NotIn},
		metav1.LabelSelectorOpExists:       {exists, selection.Exists},
		metav1.LabelSelectorOpDoesNotExist: {doesNotExist, selection.DoesNotExist},
	}
	is, ok := known[op]
	if !ok {
		return requirement{}, fmt.Errorf("operator %q is not one of In, NotIn, Exists, DoesNotExist", op)
	}
	if _, err := labels.NewRequirement(key, is.checked, values); err != nil {
		return requirement{}, err
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	return requirement{key: key, operator: is.operator, values: slices.Compact(sorted)}, nil
}

func newSelector(list []requirement) Selector {
	type named struct {
		text string
		requirement
	}
	all := make([]named, len(list))
	for i := range list {
		all[i] = named{list[i].String(), list[i]}
	}
	slices.SortFunc(all, func(a, b named) int { return strings.Compare(a.text, b.text) })
	all = slices.CompactFunc(all, func(a, b named) bool { return a.text == b.text })
	var s Selector
	texts := make([]string, len(all))
	for i := range all {
		s.requirements = append(s.requirements, all[i].requirement)
		texts[i] = all[i].text
	}
	s.text = strings.Join(texts, ",")
	return s
}
