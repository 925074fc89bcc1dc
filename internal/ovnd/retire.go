package ovnd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/ovsdb/session"
)

// Tables of the southbound database with a row for each chassis.
const (
	chassisTable        = "Chassis"
	privateChassisTable = "Chassis_Private"
)

// retireAgain is the least time between two removals of one chassis: the ovn-controller of a machine that still runs, although its Node was
// deleted, adds its chassis again.
const retireAgain = time.Minute

// retire removes the chassis of deleted nodes, which no ovn-controller removes. The other nodes would keep their tunnels to them, and a new
// node with the address of a deleted one could not join: the database accepts an address from one chassis only. A chassis is removed if there
// is neither a NodeNetwork nor a Node of its name.
func (g *Guard) retire(ctx context.Context, southbound *session.Session) error {
	if southbound == nil {
		return nil // the session signals when it is connected
	}
	var errs []error
	for _, chassis := range session.Rows[chassisRow](southbound, chassisTable) {
		if time.Since(g.retired[chassis.Name]) < retireAgain {
			continue
		}
		deleted, err := g.deleted(ctx, chassis.Name)
		if err == nil && deleted {
			if err = removeChassis(ctx, southbound, chassis.Name); err == nil {
				g.retired[chassis.Name] = time.Now()
				g.options.Log.InfoContext(ctx, "the chassis of a deleted node is removed", "chassis", chassis.Name)
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// deleted reports whether there is neither a NodeNetwork nor a Node of the name.
func (g *Guard) deleted(ctx context.Context, node string) (bool, error) {
	err := g.cache.Get(ctx, client.ObjectKey{Name: node}, &weftv1.NodeNetwork{})
	switch {
	case err == nil, errors.As(err, new(*cache.ErrCacheNotStarted)): // it signals when it is complete
		return false, nil
	case !apierrors.IsNotFound(err):
		return false, fmt.Errorf("read NodeNetwork %s: %w", node, err)
	}
	_, err = g.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("read Node %s: %w", node, err)
	}
	return err != nil, nil
}

// removeChassis removes a chassis. The database removes its encapsulations with it.
func removeChassis(ctx context.Context, southbound *session.Session, name string) error {
	where := []ovsdb.Condition{{Column: "name", Function: ovsdb.ConditionEqual, Value: name}}
	ops := []ovsdb.Operation{
		{Op: ovsdb.OperationDelete, Table: chassisTable, Where: where}, {Op: ovsdb.OperationDelete, Table: privateChassisTable, Where: where},
	}
	results, err := southbound.Transact(ctx, ops...)
	if err == nil {
		err = session.Check(ops, results)
	}
	if err != nil {
		return fmt.Errorf("remove chassis %s: %w", name, err)
	}
	return nil
}
