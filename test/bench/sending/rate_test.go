package sending

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// Paths are compared at the highest rate that the control forwards without loss, and at a lower one if the comparison loses packets. Any
// other error ends the row.
func TestAtHighestRate(t *testing.T) {
	broken := errors.New("no switch")
	for _, test := range []struct {
		name                     string
		controlMost, compareMost int
		controlErr               error
		want                     []int
		ends                     error
	}{
		{"idle machine", forwardRate, forwardRate, nil, []int{10000}, nil},
		{"slow machine", 3000, 3000, nil, []int{2500}, nil},
		{"a round loses", forwardRate, 5000, nil, []int{10000, 5000}, nil},
		{"always", 0, 0, nil, nil, errLost},
		{"ours loses at every rate", forwardRate, 0, nil, []int{10000, 5000, 2500, 1250, 625}, errLost},
		{"broken", forwardRate, forwardRate, broken, nil, broken},
	} {
		var at []int
		err := atHighestRate(func(rate int) error {
			if test.controlErr != nil || rate <= test.controlMost {
				return test.controlErr
			}
			return fmt.Errorf("control: %w", errLost)
		}, func(rate int) error {
			at = append(at, rate)
			if rate <= test.compareMost {
				return nil
			}
			return fmt.Errorf("compare: %w", errLost)
		})
		if !slices.Equal(at, test.want) || !errors.Is(err, test.ends) || (err == nil) != (test.ends == nil) {
			t.Errorf("%s: at %v, %v", test.name, at, err)
		}
	}
}
