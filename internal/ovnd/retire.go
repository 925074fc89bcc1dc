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

// Tables of the southbound database with a row for each chassis, and for each address of their tunnels.
const (
	chassisTable        = "Chassis"
	privateChassisTable = "Chassis_Private"
	encapTable          = "Encap"
)

// retireAgain is the least time between two removals of one chassis: the ovn-controller of a machine that still runs, although its Node was
// deleted, adds its chassis again, and so does one that does not have the node's new address yet.
const retireAgain = time.Minute

// retire removes the chassis of deleted nodes, which no ovn-controller removes, and those that have the address of another node. The other
// nodes would keep their tunnels to them, and a node with the address of another chassis could not join: the database accepts an address from one
// chassis only.
func (g *Guard) retire(ctx context.Context, southbound *session.Session) error {
	if southbound == nil {
		return nil // the session signals when it is connected
	}
	displaced, err := g.displaced(ctx, southbound)
	errs := []error{err}
	for _, chassis := range session.Rows[chassisRow](southbound, chassisTable) {
		if time.Since(g.retired[chassis.Name]) < retireAgain {
			continue
		}
		why := "it has the address of another node"
		remove := displaced[chassis.Name]
		if !remove {
			why = "its node was deleted"
			remove, err = g.deleted(ctx, chassis.Name)
			errs = append(errs, err)
		}
		if !remove {
			continue
		}
		if err := removeChassis(ctx, southbound, chassis.Name); err != nil {
			errs = append(errs, err)
			continue
		}
		g.retired[chassis.Name] = time.Now()
		g.options.Log.InfoContext(ctx, "a chassis is removed", "chassis", chassis.Name, "why", why)
	}
	return errors.Join(errs...)
}

// displaced returns the chassis whose tunnels have an address that, as their own agents report, their nodes have no longer, and that other nodes
// have now. Nodes that exchange their addresses would wait for each other.
func (g *Guard) displaced(ctx context.Context, southbound *session.Session) (map[string]bool, error) {
	var nodes weftv1.NodeNetworkList
	if err := g.cache.List(ctx, &nodes); errors.As(err, new(*cache.ErrCacheNotStarted)) {
		return map[string]bool{}, nil // it signals when it is complete
	} else if err != nil {
		return nil, fmt.Errorf("list NodeNetworks: %w", err)
	}
	addressOf, has := map[string]string{}, map[string]bool{}
	for i := range nodes.Items {
		for _, section := range nodes.Items[i].Status.Networks {
			if section.VPC != nil && section.VPC.EncapIP != "" {
				addressOf[nodes.Items[i].Name], has[section.VPC.EncapIP] = section.VPC.EncapIP, true
			}
		}
	}
	displaced := map[string]bool{}
	for _, encap := range session.Rows[encapRow](southbound, encapTable) {
		if now := addressOf[encap.Chassis]; now != "" && now != encap.IP && has[encap.IP] {
			displaced[encap.Chassis] = true
		}
	}
	return displaced, nil
}

// deleted reports whether there is neither a NodeNetwork nor a Node of the name: then its chassis is removed.
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
