package cluster

import (
	"context"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// LeaseTerm returns the term of a leadership by a lease, which grows with each new holder: the lease's creation time, and the number of its
// transitions since. A lease that was deleted and created again counts from zero. While another replica holds the lease, there is no term:
// a replica that has lost the lease without having noticed must not take the holder's term.
func LeaseTerm(namespace, name, identity string) func(context.Context, client.Reader) (uint64, error) {
	return func(ctx context.Context, live client.Reader) (uint64, error) {
		lease := &coordinationv1.Lease{}
		if err := live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, lease); err != nil {
			return 0, fmt.Errorf("read lease %s/%s: %w", namespace, name, err)
		}
		if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); holder != identity {
			return 0, fmt.Errorf("lease %s/%s: %w: %q holds it", namespace, name, ErrNotLeading, holder)
		}
		created := max(lease.CreationTimestamp.Unix(), 0)
		transitions := max(ptr.Deref(lease.Spec.LeaseTransitions, 0), 0)
		return uint64(created)<<transitionBits | uint64(min(transitions, 1<<transitionBits-1)), nil //nolint:gosec // neither is negative
	}
}

// transitionBits is the number of bits of a term for the transitions of one lease: a million.
const transitionBits = 20

// ErrNotLeading reports that another replica holds the lease.
var ErrNotLeading = errors.New("this replica does not lead")
