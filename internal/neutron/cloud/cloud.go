// Package cloud creates, changes and removes Weft's objects in OpenStack: networks with their subnets, routers and security groups, ports
// and load balancers.
//
// Every call may be repeated. A call looks for existing objects, creates missing ones, and removes what it created if a later step fails.
// Objects that Weft created carry a mark in their description, which the creating request sets; look-ups by name are limited to a project.
package cloud

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/pagination"

	"weft.dev/weft/internal/neutron/conf"
	"weft.dev/weft/internal/neutron/openstack"
)

// Cloud makes Weft's requests to one OpenStack. Its methods may be called concurrently for different objects.
//
// Each part makes the requests about one kind of object.
type Cloud struct {
	marks
	tenants
	topology
	portSet
	balancers
}

// Config is the configuration of created objects.
type Config struct {
	// Cluster marks the objects that this installation of Weft created; two installations on one OpenStack need different ones.
	Cluster string
	// ExternalNetwork is the external network of routers and floating IPs; "" for none.
	ExternalNetwork string
	// LoadBalancer is the section of kubestack.conf.
	LoadBalancer conf.LoadBalancer
}

// New returns a Cloud that uses a client.
func New(client *openstack.Client, config Config) *Cloud {
	marks := marks{config.Cluster}
	ports := portSet{marks, client}
	return &Cloud{
		marks: marks, tenants: tenants{marks, client}, portSet: ports,
		topology: topology{marks: marks, client: client, ports: ports, external: config.ExternalNetwork},
		balancers: balancers{
			marks: marks, client: client, config: config.LoadBalancer,
			floating: floatingIPs{marks: marks, client: client, external: config.ExternalNetwork},
		},
	}
}

// Errors that callers distinguish.
var (
	ErrNotFound = errors.New("not found in OpenStack")
	ErrMultiple = errors.New("several objects in OpenStack have this name")
)

// markPrefix begins the description of every object that Weft created.
const markPrefix = "weft "

// marks are the descriptions of the objects that an installation of Weft created.
type marks struct{ cluster string }

// mark is the description of an object created for owner.
func (m marks) mark(owner string) string { return markPrefix + m.cluster + " " + owner }

// OwnerOf returns the owner in the description of an object in OpenStack, if this installation's mark is in it. It proves nothing alone:
// every owner of an object can write its description.
func (m marks) OwnerOf(description string) (owner string, ours bool) {
	return strings.CutPrefix(description, m.mark(""))
}

// marked reports whether a description is this installation's mark.
func (m marks) marked(description string) bool {
	_, ours := m.OwnerOf(description)
	return ours
}

// list reads all pages of a list. An empty list is no error.
func list[T any](ctx context.Context, pager pagination.Pager, extract func(pagination.Page) ([]T, error)) ([]T, error) {
	pages, err := pager.AllPages(ctx)
	if err != nil {
		return nil, openstack.Explain(err)
	}
	return extract(pages)
}

// ErrAnswer is returned for an answer of OpenStack that lacks the requested object. The effect of such a call is unknown.
var ErrAnswer = errors.New("OpenStack's answer lacks the object that was asked for")

// whole returns the object in OpenStack's answer, or ErrAnswer.
func whole[T any](object *T, err error) (*T, error) {
	if err == nil && object == nil {
		return nil, ErrAnswer
	}
	return object, err
}

// only returns the only element of a list, or nil for an empty one.
func only[T any](what string, found []T, err error) (*T, error) {
	switch {
	case err != nil:
		return nil, fmt.Errorf("look for %s: %w", what, err)
	case len(found) > 1:
		return nil, fmt.Errorf("%s: %w (%d)", what, ErrMultiple, len(found))
	case len(found) == 1:
		return &found[0], nil
	}
	return nil, nil
}

// within returns those of the found objects that are in a project, if there are any: every user of OpenStack can write Weft's mark on an
// object of another project. projectOf returns an object's project.
func within[T any](project string, found []T, projectOf func(*T) string) []T {
	elsewhere := func(one T) bool { return projectOf(&one) != project }
	if inside := slices.DeleteFunc(slices.Clone(found), elsewhere); len(inside) > 0 {
		return inside
	}
	return found
}

// keepOne deletes all but one of the objects that Weft created for the same purpose, from the last to the first, and returns it; nil if there
// is none. There are several if OpenStack carries out a request after the time for its answer is up, and the request was sent again.
// OpenStack answers 409 for one that is in use; it stays.
func keepOne[T any](what string, found []T, remove func(*T) error) (*T, error) {
	for i := len(found) - 1; i >= 0 && len(found) > 1; i-- {
		err := gone(what, remove(&found[i]))
		switch {
		case err == nil:
			found = slices.Delete(found, i, i+1)
		case !openstack.Is(err, http.StatusConflict):
			return nil, err
		}
	}
	return only(what, found, nil)
}

// makeOnce creates what look does not find. If the outcome of the creation is unknown, it looks again before it fails, so that nothing is
// created twice. made reports whether this call created it. id returns an object's id.
func makeOnce[T any](
	ctx context.Context, what string, id func(*T) string, look func(context.Context) (*T, error), create func(context.Context) (*T, error),
) (object *T, made bool, err error) {
	if object, err = look(ctx); err != nil || object != nil {
		return object, false, err
	}
	return makeAbsent(ctx, what, id, look, create)
}

// makeAbsent is makeOnce for an object that does not exist.
func makeAbsent[T any](
	ctx context.Context, what string, id func(*T) string, look func(context.Context) (*T, error), create func(context.Context) (*T, error),
) (object *T, made bool, err error) {
	object, err = create(ctx)
	if err == nil && (object == nil || id(object) == "") {
		err = ErrAnswer
	}
	if err == nil {
		return object, true, nil
	}
	if openstack.Unknown(err) && ctx.Err() == nil {
		if found, lookErr := look(ctx); lookErr == nil && found != nil {
			return found, true, nil
		}
	}
	return nil, false, fmt.Errorf("create %s: %w", what, openstack.Explain(err))
}

// together runs steps at once, and waits for all of them even if one fails: the outcome of a request that is broken off is unknown.
func together(ctx context.Context, steps ...func(context.Context) error) error {
	errs := make([]error, len(steps))
	var group sync.WaitGroup
	for i, step := range steps {
		group.Go(func() { errs[i] = step(ctx) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// undo collects the steps that remove what a call created, and runs them in reverse order.
type undo []func(context.Context) error

// undoLimit limits the roll-back, which continues after the caller's context has ended.
const undoLimit = time.Minute

func (u *undo) add(made bool, step func(context.Context) error) {
	if made {
		*u = append(*u, step)
	}
}

func (u undo) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	var errs []error
	for _, step := range slices.Backward(u) {
		errs = append(errs, step(ctx))
	}
	return errors.Join(errs...)
}

// gone returns nil if an object does not exist any more.
func gone(what string, err error) error {
	if err == nil || openstack.NotFound(err) {
		return nil
	}
	return fmt.Errorf("delete %s: %w", what, openstack.Explain(err))
}

// await polls until done returns true, at growing intervals; for what OpenStack does after it has answered.
func await(ctx context.Context, what string, done func(context.Context) (bool, error)) error {
	const first, last = 100 * time.Millisecond, 2 * time.Second
	for interval := first; ; interval = min(interval*3/2, last) {
		ok, err := done(ctx)
		if err != nil || ok {
			return err
		}
		timer := time.NewTimer(interval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-timer.C:
		}
	}
}

// yes is a pointer to true, which gophercloud needs in options.
func yes() *bool { return gophercloud.Enabled }
