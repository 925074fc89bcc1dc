package vpc

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/ovsdb/session"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/probe"
)

// Metrics of many VPCs.
const (
	// Share is the time from a Subnet's event until its switch is in the northbound database, in ms; Northd is the time from when ovn-northd,
	// which is stopped meanwhile, goes on until it has computed the switches of a round.
	Share  = "subnet-share"
	Northd = "subnet-northd"
	// Started is the time from the start of the controller until it has found the northbound database complete, in ms. Written is the number of
	// rows that it wrote meanwhile, Resident its memory afterwards, in MB.
	Started  = "controller-start"
	Written  = "controller-rows"
	Resident = "resident"
)

const (
	controllerProgram, northdProgram = "weft-controller", "ovn/ovn-northd"
	// distant is the node of the fleet's pods: there is no such node.
	distant = "distant"
	// fleetWrites limits the requests at a time that create objects.
	fleetWrites = 16
	// fleetLimit limits how long the programs may take to bring the fleet into effect.
	fleetLimit = 10 * time.Minute
	kilobyte   = 1024
	megabyte   = 1e6
)

// Fleet is many VPCs beside the scene, each with a Subnet and pods of a node that does not exist.
type Fleet struct {
	scene *Scene
	// busy creates objects without a limit of requests.
	busy       client.WithWatch
	northbound *session.Keeper
	changed    chan struct{}
	// touched are rows of the northbound database that have changed since the last look at them.
	touched touched
	// written counts changed rows of the northbound database, without those of NB_Global, which counts the changes.
	written atomic.Int64
	size    int
	round   int
}

// The columns in which a change of any row of Weft is seen.
type (
	globalRow struct {
		UUID        string            `ovsdb:"_uuid"`
		ExternalIDs map[string]string `ovsdb:"external_ids"`
	}
	switchRow struct {
		UUID        string            `ovsdb:"_uuid"`
		Name        string            `ovsdb:"name"`
		Ports       []string          `ovsdb:"ports"`
		OtherConfig map[string]string `ovsdb:"other_config"`
		ExternalIDs map[string]string `ovsdb:"external_ids"`
	}
	portRow struct {
		UUID         string            `ovsdb:"_uuid"`
		Addresses    []string          `ovsdb:"addresses"`
		PortSecurity []string          `ovsdb:"port_security"`
		ExternalIDs  map[string]string `ovsdb:"external_ids"`
	}
	routerRow struct {
		UUID        string            `ovsdb:"_uuid"`
		Name        string            `ovsdb:"name"`
		Options     map[string]string `ovsdb:"options"`
		ExternalIDs map[string]string `ovsdb:"external_ids"`
	}
)

const (
	globalTable = "NB_Global"
	switchTable = "Logical_Switch"
	routerTable = "Logical_Router"
)

// NewFleet returns a fleet without VPCs. Call Close after it.
func NewFleet(ctx context.Context, s *Scene) (*Fleet, error) {
	config, err := s.RESTConfig()
	if err != nil {
		return nil, err
	}
	config.Timeout, config.QPS = 0, -1
	f := &Fleet{scene: s, changed: make(chan struct{}, 1)}
	if f.busy, err = client.NewWithWatch(config, client.Options{Scheme: s.objects.Scheme()}); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	f.northbound, err = session.Keep(ctx, session.Config{
		Database: "OVN_Northbound", Endpoints: []string{"unix:" + plan.New(s.Config).RunPath("ovn", "nb.sock")},
		Tables: map[string]model.Model{
			globalTable: &globalRow{}, switchTable: &switchRow{}, "Logical_Switch_Port": &portRow{},
			routerTable: &routerRow{}, "Logical_Router_Port": &routerRow{},
		},
		ChangedRows: f.touched.add,
		Changed: func(table string) {
			if table != globalTable {
				f.written.Add(1)
			}
			select {
			case f.changed <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("follow the northbound database: %w", err)
	}
	return f, nil
}

// Close ends the connection to the database.
func (f *Fleet) Close() { f.northbound.Close() }

// Grow makes the fleet as large as that many VPCs, each with a number of pods. The controller writes their rows meanwhile, as they come.
func (f *Fleet) Grow(ctx context.Context, vpcs, pods int) error {
	f.scene.stage.Say("making %d VPCs with %d pods each", vpcs-f.size, pods)
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(fleetWrites)
	create := func(object client.Object) {
		group.Go(func() error {
			if err := f.busy.Create(within, object); err != nil {
				return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
			}
			return nil
		})
	}
	for i := f.size; i < vpcs; i++ {
		name := fmt.Sprintf("fleet-%d", i)
		create(Vpc(name))
		create(Subnet(name))
		for p := range pods {
			create(&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s-%d", name, p), Annotations: map[string]string{kubeovn.AnnotationLogicalSwitch: name},
				},
				Spec: corev1.PodSpec{NodeName: distant, Containers: []corev1.Container{{Name: "main", Image: "bench"}}},
			})
		}
	}
	err := group.Wait()
	f.size = vpcs
	if err != nil {
		return err
	}
	_, err = probe.Await(ctx, fleetLimit, "the addresses of all pods", func(ctx context.Context) error {
		var subnets kubeovn.SubnetList
		if err := f.busy.List(ctx, &subnets); err != nil {
			return fmt.Errorf("list Subnets: %w", err)
		}
		have := 0
		for i := range subnets.Items {
			have += int(subnets.Items[i].Status.V4UsingIPs)
		}
		if have < vpcs*pods {
			return fmt.Errorf("%w: %d of %d", errNotYet, have, vpcs*pods)
		}
		return nil
	})
	if err != nil {
		return err //nolint:wrapcheck // it says what was awaited
	}
	return f.sync(ctx, "hv")
}

// sync waits until OVN has processed the northbound database: ovn-northd (sb), or also ovn-controller (hv).
func (f *Fleet) sync(ctx context.Context, wait string) error {
	return f.scene.nbctl(ctx, "--wait="+wait, "sync")
}

// until waits until a condition on the northbound database holds, and returns when it was found to.
func (f *Fleet) until(ctx context.Context, what string, holds func(*session.Session) bool) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		if s := f.northbound.Current(); s != nil && holds(s) {
			return time.Now(), nil
		}
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait in the northbound database for %s: %w", what, context.Cause(ctx))
		case <-f.changed:
		}
	}
}

// has returns a condition: the table has a row of the name. It looks at all rows once, and then at those that change: the time that it takes
// does not depend on the size of the fleet.
func has[T any](f *Fleet, table, name string, nameOf func(*T) string) func(*session.Session) bool {
	f.touched.take(table)
	looked := false
	return func(s *session.Session) bool {
		if !looked {
			looked = true
			for _, row := range session.Rows[T](s, table) {
				if nameOf(row) == name {
					return true
				}
			}
		}
		for _, uuid := range f.touched.take(table) {
			if row, ok := session.Model(s, table, uuid).(*T); ok && nameOf(row) == name {
				return true
			}
		}
		return false
	}
}

// touched are UUIDs of rows, by table. It is safe for concurrent use. The zero value has none.
type touched struct {
	mu   sync.Mutex
	rows map[string][]string
}

func (t *touched) add(table string, uuids []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows == nil {
		t.rows = map[string][]string{}
	}
	t.rows[table] = append(t.rows[table], uuids...)
}

// take returns the rows of a table, and removes them.
func (t *touched) take(table string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	rows := t.rows[table]
	delete(t.rows, table)
	return rows
}

// Start restarts the controller, which releases its lease as it ends.
func (f *Fleet) Start(ctx context.Context) (measure.Figures, error) {
	marked := func(s *session.Session) (mark string) {
		for _, row := range session.Rows[globalRow](s, globalTable) {
			mark = row.ExternalIDs[ovn.CompleteKey]
		}
		return mark
	}
	before := marked(f.northbound.Current())
	rows := f.written.Load()
	if err := probe.Kill(ctx, f.scene.Cluster, controllerProgram, syscall.SIGTERM); err != nil {
		return nil, err //nolint:wrapcheck // it names the program
	}
	at, err := f.until(ctx, "the mark of a new leader", func(s *session.Session) bool {
		now := marked(s)
		return now != "" && now != before
	})
	if err != nil {
		return nil, err
	}
	status, err := probe.Program(ctx, f.scene.Cluster, controllerProgram)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the program
	}
	size, err := settled(ctx, f.scene.Cluster, controllerProgram)
	return measure.Figures{
		Started: milliseconds(at.Sub(status.Since)), Written: float64(f.written.Load() - rows), Resident: size,
	}, err
}

// Floor lists the objects that the controller reads, and dumps the northbound database. Its memory is that of ovn-northd.
func (f *Fleet) Floor(ctx context.Context) (measure.Figures, error) {
	began := time.Now()
	for _, list := range []client.ObjectList{
		&corev1.PodList{}, &corev1.NamespaceList{}, &networkingv1.NetworkPolicyList{}, &appsv1.StatefulSetList{}, &corev1.ConfigMapList{}, nat.DefinitionList(),
		&kubeovn.VpcList{}, &kubeovn.SubnetList{}, &kubeovn.IPList{}, &kubeovn.VpcNatGatewayList{}, &kubeovn.IptablesEIPList{},
		&kubeovn.IptablesSnatRuleList{}, &kubeovn.IptablesDnatRuleList{}, &kubeovn.IptablesFIPRuleList{},
	} {
		if err := f.busy.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	endpoint := "unix:" + plan.New(f.scene.Config).RunPath("ovn", "nb.sock")
	if _, err := probe.Run(ctx, []string{"ovsdb-client", "dump", endpoint, "OVN_Northbound"}); err != nil {
		return nil, err //nolint:wrapcheck // it has the command
	}
	took := milliseconds(time.Since(began))
	size, err := settled(ctx, f.scene.Cluster, northdProgram)
	return measure.Figures{Started: took, Resident: size}, err
}
