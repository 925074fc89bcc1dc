package openflow

import (
	"errors"
	"fmt"

	"weft.dev/weft/internal/openflow/wire"
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

var errTable = errors.New("tables go from 0 to 254")

func (f *Flow) validate() error {
	if err := f.Match.Validate(); err != nil {
		return err
	}
	if f.Table == tableAll {
		return errTable
	}
	if err := f.Actions.Validate(f.Table); err != nil {
		return err
	}
	if len(f.Actions) > 1 && len(flowMod(flowAdd, f).Body)+HeaderLen+BundleOverhead > wire.MaxMessage {
		return ErrTooLong
	}
	return nil
}
