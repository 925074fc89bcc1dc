package action

import (
	"errors"
	"fmt"

	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/openflow/wire"
)

var (
	errBackwards   = errors.New("goto_table leads to later tables only")
	errConjunction = errors.New("a conjunction can be combined with note actions only")
	errClauses     = errors.New("a conjunction has 2 to 64 clauses, numbered from 1")
	errSubfield    = errors.New("a range of bits is not within its field")
	errSetField    = errors.New("set_field of no field, or of a value that the field cannot hold")
	errNested      = errors.New("an instruction cannot be nested in an action")
	errLearn       = errors.New("learn: a value is too large for its range")
)

// Validate reports what the switch would refuse of the actions of a flow of the table, as far as that can be checked without the switch.
func (a Actions) Validate(table uint8) error {
	conjunctions, others := 0, 0
	for _, action := range a {
		switch action := action.(type) {
		case conjunction:
			conjunctions++
		case note:
			continue
		case gotoTable:
			if action.table <= table {
				return errBackwards
			}
			others++
		default:
			others++
		}
		if err := validateAction(action); err != nil {
			return err
		}
	}
	if conjunctions > 0 && others > 0 {
		return errConjunction
	}
	return nil
}

// ValidateNested does the same for actions within an action or a bucket.
func (a Actions) ValidateNested() error {
	for _, action := range a {
		if _, ok := action.(instruction); ok {
			return fmt.Errorf("%s: %w", action, errNested)
		}
		if err := validateAction(action); err != nil {
			return err
		}
	}
	return nil
}

func validateAction(a Action) error {
	switch a := a.(type) {
	case conjunction:
		if a.n < 2 || a.n > 64 || a.clause < 1 || a.clause > a.n {
			return fmt.Errorf("%s: %w", a, errClauses)
		}
	case setField:
		if a.to.IsEmpty() {
			return errSetField
		}
	case move:
		if a.src.Bits != a.dst.Bits {
			return fmt.Errorf("%s: %w", a, errSubfield)
		}
		return validateRanges(a.src, a.dst)
	case outputReg:
		return validateRanges(a.src)
	case checkPktLarger:
		return validateRanges(a.dst)
	case clone:
		return a.actions.ValidateNested()
	case writeActions:
		return a.actions.ValidateNested()
	case ct:
		if a.ZoneField != nil {
			if err := validateRanges(*a.ZoneField); err != nil {
				return err
			}
		}
		return a.Exec.ValidateNested()
	case learn:
		return a.validate()
	}
	return nil
}

func validateRanges(ranges ...oxm.Subfield) error {
	for _, s := range ranges {
		if !s.IsValid() {
			return fmt.Errorf("%s: %w", s, errSubfield)
		}
	}
	return nil
}

func (a learn) validate() error {
	for _, f := range a.Fields {
		if f.from {
			if err := validateRanges(f.src); err != nil {
				return err
			}
		} else if !f.value.AndNot(wire.Ones(f.to.Bits)).IsZero() {
			return fmt.Errorf("%s: %w", a, errLearn)
		}
		if f.dst == learnOutput {
			continue
		}
		if err := validateRanges(f.to); err != nil {
			return err
		}
		if f.from && f.src.Bits != f.to.Bits {
			return fmt.Errorf("%s: %w", a, errSubfield)
		}
	}
	return nil
}
