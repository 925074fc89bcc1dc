package engines

import (
	"context"
	"sync"
	"time"

	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/link/podveth"
)

// surveyed are the pods' links. They can be listed shortly before the overlay first requests them. Once its engines run, the overlay checks
// all host veths again, so it finds what changed in between.
type surveyed struct {
	*podveth.Pods
	// listing serialises survey, and guards the fields below.
	listing    sync.Mutex
	listed     time.Time
	owners     map[string]string
	preplugged map[string]podlink.PrepluggedPort
}

// surveyedFor is how long the result of survey is used.
const surveyedFor = 5 * time.Second

// survey lists the links, with the ports in the namespace at path. If it fails, List and ListPreplugged list again, and return the error.
func (s *surveyed) survey(ctx context.Context, path string) {
	s.listing.Lock()
	defer s.listing.Unlock()
	listed := time.Now()
	if owners, preplugged, err := s.Survey(ctx, path); err == nil {
		s.listed, s.owners, s.preplugged = listed, owners, preplugged
	}
}

// List implements podlink.Links.
func (s *surveyed) List(ctx context.Context) (map[string]string, error) {
	s.listing.Lock()
	listed, owners := s.listed, s.owners
	s.owners = nil
	s.listing.Unlock()
	if owners != nil && time.Since(listed) < surveyedFor {
		return owners, nil
	}
	return s.Pods.List(ctx)
}

// ListPreplugged implements podlink.PrepluggedLinks.
func (s *surveyed) ListPreplugged(ctx context.Context, path string) (map[string]podlink.PrepluggedPort, error) {
	s.listing.Lock()
	listed, preplugged := s.listed, s.preplugged
	s.preplugged = nil
	s.listing.Unlock()
	if preplugged != nil && time.Since(listed) < surveyedFor {
		return preplugged, nil
	}
	return s.Pods.ListPreplugged(ctx, path)
}
