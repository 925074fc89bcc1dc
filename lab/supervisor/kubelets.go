package supervisor

import (
	"context"
	"errors"
)

func (s *Supervisor) bringKubelets(context.Context) error { return errors.New("not yet") }
