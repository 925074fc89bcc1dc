package openflow

import (
	"errors"
	"fmt"
)

// Validate reports what the switch would refuse, as far as that can be checked without the switch, and values that do not fit their
// fields.
func (f *Flow) Validate() error {
	err := f.validate()
	if err != nil {
		return fmt.Errorf("flow %s: %w", f.Key(), err)
	}
	return nil
}

var (
	errTable       = errors.New("tables go from 0 to 254")
	errBackwards   = errors.New("goto_table leads to later tables only")
	errConjunction = errors.New("a conjunction can be combined with note actions only")
	errClauses     = errors.New("a conjunction has 2 to 64 clauses, numbered from 1")
	errSubfield    = errors.New("a range of bits is not within its field")
	errSetField    = errors.New("set_field of no field, or of a value that the field cannot hold")
	errNested      = errors.New("an instruction cannot be nested in an action")
	errLearn       = errors.New("learn: a value is too large for its range")
)

func (f *Flow) validate() error {
	if err := f.Match.Validate(); err != nil {
		return err
	}
	if f.Table == tableAll {
		return errTable
	}
	conjunctions, others := 0, 0
	for _, a := range f.Actions {
		switch a := a.(type) {
		case conjunction:
			conjunctions++
		case note:
			continue
		case gotoTable:
			if a.table <= f.Table {
				return errBackwards
			}
			others++
		default:
			others++
		}
		if err := validateAction(a); err != nil {
			return err
		}
	}
	if conjunctions > 0 && others > 0 {
		return errConjunction
	}
	if len(f.Actions) > 1 && len(flowMod(flowAdd, f).body)+headerLen+bundleOverhead > maxMessage {
		return errTooLong
	}
	return nil
}

// validateNested checks actions within an action or a bucket.
func validateNested(actions Actions) error {
	for _, a := range actions {
		if _, ok := a.(instruction); ok {
			return fmt.Errorf("%s: %w", a, errNested)
		}
		if err := validateAction(a); err != nil {
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
		if a.to.field == fieldNone || a.to.mask.isZero() {
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
		return validateNested(a.actions)
	case writeActions:
		return validateNested(a.actions)
	case ct:
		if a.ZoneField != nil {
			if err := validateRanges(*a.ZoneField); err != nil {
				return err
			}
		}
		return validateNested(a.Exec)
	case learn:
		return a.validate()
	}
	return nil
}

func validateRanges(ranges ...Subfield) error {
	for _, s := range ranges {
		if s.Field == fieldNone || s.Field >= fieldCount || s.Bits == 0 || uint32(s.Offset)+uint32(s.Bits) > uint32(s.Field.Bits()) {
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
		} else if !f.value.andNot(onesU128(f.to.Bits)).isZero() {
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
