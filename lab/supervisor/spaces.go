package supervisor

import (
	"sync"

	"weft.dev/weft/lab/ground"
)

// spaces are the lab's namespaces by part (ul, cp, out, n1...), as far as they exist.
type spaces struct {
	mu     sync.Mutex
	byPart map[string]ground.Space
}

func newSpaces() *spaces { return &spaces{byPart: map[string]ground.Space{}} }

func (s *spaces) add(part string, space ground.Space) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byPart[part] = space
}

// of returns the zero Space until the namespace exists.
func (s *spaces) of(part string) ground.Space {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byPart[part]
}

// netPath returns the path of the network namespace, "" until it exists.
func (s *spaces) netPath(part string) string {
	if sp := s.of(part); sp != (ground.Space{}) {
		return sp.NetPath()
	}
	return ""
}
