package reconcile

import "testing"

// number is a value that can be equal to another one without being the same.
type number struct{ at *int }

func (n number) Equal(other number) bool { return *n.at == *other.at }

func numbers(a, b int) map[string]number { return map[string]number{"a": {&a}, "b": {&b}} }

// TestOnce: a value that is read back, or handed over again, is not kept beside an equal one that is desired already.
func TestOnce(t *testing.T) {
	s := newState(&Options[string, number]{})
	first := numbers(1, 2)
	s.replace(map[Owner]map[string]number{"o": first})
	d := s.take(numbers(1, 3))
	if len(d.change.Set) != 1 || d.change.Set["b"] != first["b"] {
		t.Errorf("change: %v", d.change)
	}
	s.settle(&d, nil)
	if s.actual["a"] != first["a"] || s.actual["b"] != first["b"] {
		t.Error("an equal value that was read is kept")
	}
	if len(s.leaving) != 0 {
		t.Errorf("owners that withdrew something: %v", s.leaving)
	}
	again := numbers(1, 4)
	given := again["a"]
	s.replace(map[Owner]map[string]number{"o": again})
	if s.desired.fragments["o"]["a"] != first["a"] || s.desired.fragments["o"]["b"] != again["b"] {
		t.Error("an equal value that was handed over again is kept")
	}
	if again["a"] != given {
		t.Error("the caller's fragment was changed")
	}
	if d := s.take(nil); len(d.change.Set) != 1 || d.change.Set["b"] != again["b"] {
		t.Errorf("change: %v", d.change)
	}
}
