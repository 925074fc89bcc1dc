package rtnetlink

import (
	"errors"

	"github.com/vishvananda/netlink/nl"
)

// Plan is a list of requests, each with its purpose.
type Plan struct {
	requests []*nl.NetlinkRequest
	what     []string
	ignore   map[int]error
}

// Add adds a request.
func (l *Plan) Add(what string, request *nl.NetlinkRequest) {
	l.what = append(l.what, what)
	l.requests = append(l.requests, request)
}

// AddUnless adds a request that may fail with the given error.
func (l *Plan) AddUnless(ignored error, what string, request *nl.NetlinkRequest) {
	if l.ignore == nil {
		l.ignore = map[int]error{}
	}
	l.ignore[len(l.what)] = ignored
	l.Add(what, request)
}

// Empty reports whether the plan has no request.
func (l *Plan) Empty() bool { return len(l.requests) == 0 }

// Run sends the requests, and returns the first error with the purpose of its request.
func (l *Plan) Run(c *Conn) error {
	answers, err := c.Do(l.requests...)
	if err != nil {
		return err
	}
	for i, ignored := range l.ignore {
		if errors.Is(answers[i].Err, ignored) {
			answers[i].Err = nil
		}
	}
	return All(answers, l.what)
}
