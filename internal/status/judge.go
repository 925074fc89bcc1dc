package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/clusternetwork"
)

// judgement is a report under construction.
type judgement struct {
	facts  *Facts
	report Report
}

// Judge makes a report from facts. It is pure.
func Judge(facts *Facts) Report {
	j := &judgement{facts: facts, report: Report{
		Problems: []Finding{}, Warnings: []Finding{}, Nodes: []Node{}, Versions: map[string][]Version{},
	}}
	j.access()
	j.network()
	j.sections()
	j.controller()
	j.agents()
	j.nodes()
	j.versions()
	j.report.OK = len(j.report.Problems) == 0
	return j.report
}

func (j *judgement) problem(object, next, what string, args ...any) {
	j.report.Problems = append(j.report.Problems, Finding{Object: object, What: fmt.Sprintf(what, args...), Next: next})
}

func (j *judgement) warn(object, next, what string, args ...any) {
	j.report.Warnings = append(j.report.Warnings, Finding{Object: object, What: fmt.Sprintf(what, args...), Next: next})
}

const objectCluster = "cluster"

// access adds problems for what could not be read.
func (j *judgement) access() {
	if len(j.facts.Undefined) > 0 {
		j.problem(objectCluster, "apply the CustomResourceDefinitions of the release (deploy/crds)",
			"the API server does not know %s of network.openshift.io/v1", strings.Join(j.facts.Undefined, " and "))
	}
	for _, u := range j.facts.Unreadable {
		j.problem(objectCluster, "use an account that may read it", "%s cannot be read: %v", u.What, u.Err)
	}
}

// known reports whether a kind could be read.
func (j *judgement) known(kind string) bool {
	return !slices.Contains(j.facts.Undefined, kind) &&
		!slices.ContainsFunc(j.facts.Unreadable, func(u Unreadable) bool { return u.What == kind })
}

func (j *judgement) network() {
	const object = "clusternetwork/" + networkv1.ClusterNetworkDefault
	if !j.known("ClusterNetwork") {
		return
	}
	network := j.facts.Network
	if j.elsewhere() {
		return
	}
	if network == nil {
		j.problem(object, "create it: it says which addresses pods have (deploy/examples/quickstart.yaml has one)", "there is none")
		return
	}
	entry := &Network{Plugin: network.PluginName, ServiceNetwork: network.ServiceNetwork}
	j.report.Network = entry
	config, err := clusternetwork.Parse(network)
	if err != nil {
		entry.Message = err.Error()
		j.problem(object, "correct the field: kubectl edit clusternetwork default", "%v", err)
		return
	}
	entry.Mode, entry.VXLANPort, entry.MTU = string(config.Mode), int(config.VXLANPort), config.MTU
	for _, r := range config.ClusterNetworks {
		entry.Ranges = append(entry.Ranges, Range{CIDR: r.Prefix.String(), HostSubnetLength: r.HostBits})
	}
	entry.Valid = true
	for _, kind := range []string{networkv1.ConditionValid, networkv1.ConditionReady} {
		c := meta.FindStatusCondition(network.Status.Conditions, kind)
		if c == nil || c.Status == metav1.ConditionTrue {
			continue
		}
		if kind == networkv1.ConditionValid {
			entry.Valid, entry.Message = false, c.Message
		}
		j.problem(object, "do what the message says; the events on the objects that it names say more", "%s", c.Message)
	}
}

func (j *judgement) controller() {
	c := &j.report.Controller
	object := "deployment/" + controllerName
	deployment := j.facts.Controller
	if deployment != nil {
		wanted := 1
		if deployment.Spec.Replicas != nil {
			wanted = int(*deployment.Spec.Replicas)
		}
		c.Replicas = &Replicas{Wanted: wanted, Ready: int(deployment.Status.ReadyReplicas)}
	}
	leads := false
	if lease := j.facts.Lease; lease != nil && lease.Spec.HolderIdentity != nil {
		c.Leader = *lease.Spec.HolderIdentity
		if lease.Spec.RenewTime != nil && lease.Spec.LeaseDurationSeconds != nil {
			renewed := lease.Spec.RenewTime.UTC()
			c.Renewed = &renewed
			leads = c.Leader != "" && j.facts.Now.Before(renewed.Add(time.Duration(*lease.Spec.LeaseDurationSeconds)*time.Second))
		}
	}
	logs := "kubectl -n " + j.facts.Namespace + " get pods; kubectl -n " + j.facts.Namespace + " logs deploy/" + controllerName
	switch {
	case !j.known("Deployment") || !j.known("Lease"):
	case deployment == nil && !leads:
		j.problem(object, "install Weft (docs/start.md), or name its namespace with --namespace",
			"there is no controller in namespace %s: new nodes get no subnet", j.facts.Namespace)
	case !leads && c.Leader == "":
		j.problem(object, logs, "no replica leads: new nodes get no subnet")
	case !leads:
		j.problem(object, logs, "no replica leads: %s did last, until %s; new nodes get no subnet", c.Leader, when(c.Renewed))
	case c.Replicas != nil && c.Replicas.Ready == 0:
		j.problem(object, logs, "no replica is ready")
	case c.Replicas != nil && c.Replicas.Ready < c.Replicas.Wanted:
		j.warn(object, logs, "%d of %d replicas are ready: the leader has no standby", c.Replicas.Ready, c.Replicas.Wanted)
	}
}

func when(t *time.Time) string {
	if t == nil {
		return "an unknown time"
	}
	return t.Format(time.RFC3339)
}

func (j *judgement) agents() {
	set := j.facts.AgentSet
	if set == nil {
		if !j.known("DaemonSet") {
			return
		}
		if slices.ContainsFunc(j.facts.HostSubnets, reported) {
			j.warn("daemonset/"+agentName, "name its namespace with --namespace, if there is one",
				"there is none in namespace %s: whether agents that run otherwise are alive is not known", j.facts.Namespace)
			return
		}
		j.problem("daemonset/"+agentName, "install Weft (docs/start.md), or name its namespace with --namespace",
			"there is none in namespace %s: no agent serves pods", j.facts.Namespace)
		return
	}
	j.report.Agents = &Replicas{Wanted: int(set.Status.DesiredNumberScheduled), Ready: int(set.Status.NumberReady)}
	if set.Status.ObservedGeneration < set.Generation || set.Status.UpdatedNumberScheduled < set.Status.DesiredNumberScheduled {
		j.problem("daemonset/"+agentName, "wait for it: kubectl -n "+j.facts.Namespace+" rollout status ds/"+agentName,
			"an upgrade is under way: %d of %d agents are of the new release",
			set.Status.UpdatedNumberScheduled, set.Status.DesiredNumberScheduled)
	}
}

// reported reports whether an agent has written the object's status.
func reported(hs networkv1.HostSubnet) bool {
	return meta.FindStatusCondition(hs.Status.Conditions, networkv1.ConditionReady) != nil
}

func (j *judgement) nodes() {
	nodes := slices.Clone(j.facts.Nodes)
	slices.SortFunc(nodes, func(a, b corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	if len(nodes) == 0 && j.known("Nodes") {
		j.problem(objectCluster, "join a node", "there are no nodes")
	}
	for i := range nodes {
		j.node(&nodes[i])
	}
}

// node evaluates one node. If one problem explains the others, only that one is reported.
func (j *judgement) node(node *corev1.Node) {
	entry := Node{Name: node.Name, KubernetesReady: nodeReady(node), Agent: agentUnknown}
	before := len(j.report.Problems)
	at := slices.IndexFunc(j.facts.HostSubnets, func(hs networkv1.HostSubnet) bool { return hs.Name == node.Name })
	defer func() {
		j.nodeSections(node.Name)
		entry.Ready = len(j.report.Problems) == before && (at >= 0 || j.elsewhere() && j.nodeNetworkReady(node.Name))
		j.report.Nodes = append(j.report.Nodes, entry)
	}()
	if at >= 0 {
		describe(&entry, &j.facts.HostSubnets[at])
	}
	pod := j.agentPod(node.Name)
	entry.Agent = j.agent(pod)
	object := "node/" + node.Name
	switch {
	case !entry.KubernetesReady:
		j.problem(object, "kubectl describe node "+node.Name+": look at the condition Ready and the kubelet's log",
			"Kubernetes does not find it ready: %s", conditionMessage(node, corev1.NodeReady))
	case at < 0 && j.elsewhere():
		j.agentAlone(object, pod, entry.Agent)
	case !j.known("HostSubnet"), at < 0 && (j.report.Network == nil || !j.report.Network.Valid): // reported already
	case at < 0:
		j.problem(object, "give the Node an InternalIP (the kubelet's --node-ip); look at the controller's log, and at the ClusterNetwork",
			"it has no HostSubnet, and so no addresses for pods")
	case entry.Subnet == "":
		j.problem(object, "look at the ClusterNetwork's conditions", "its HostSubnet has no subnet yet")
	case entry.Agent == agentMissing, entry.Agent == agentNotReady:
		j.agentProblem(object, pod, &j.facts.HostSubnets[at])
	default:
		j.conditions(object, pod, &j.facts.HostSubnets[at])
	}
}

// agentProblem adds the problem of a node's agent.
func (j *judgement) agentProblem(object string, pod *corev1.Pod, hs *networkv1.HostSubnet) {
	if pod == nil {
		j.problem(object, "kubectl -n "+j.facts.Namespace+" describe ds/"+agentName+": does a taint or a selector keep it away?",
			"no agent runs there: its pods go on, and none is added")
		return
	}
	j.problem(object, "kubectl -n "+j.facts.Namespace+" logs "+pod.Name, "its agent is not ready: %s", agentTrouble(pod, hs))
}

// agentAlone evaluates the agent of a node that the overlay does not serve.
func (j *judgement) agentAlone(object string, pod *corev1.Pod, agent string) {
	if agent == agentMissing || agent == agentNotReady {
		j.agentProblem(object, pod, &networkv1.HostSubnet{})
		return
	}
	name := strings.TrimPrefix(object, "node/")
	if !slices.ContainsFunc(j.facts.NodeNetworks, func(n weftv1.NodeNetwork) bool { return n.Name == name && len(n.Status.Networks) > 0 }) {
		j.problem(object, "the agent's log on that node", "its agent has not reported yet: it is starting, or of a release that does not report")
	}
}

// States of agents.
const (
	agentRunning  = "running"
	agentNotReady = "not ready"
	agentMissing  = "missing"
	agentUnknown  = "unknown"
)

func (j *judgement) agentPod(node string) *corev1.Pod {
	for i := range j.facts.AgentPods {
		if pod := &j.facts.AgentPods[i]; pod.Spec.NodeName == node && pod.DeletionTimestamp == nil {
			return pod
		}
	}
	return nil
}

func (j *judgement) agent(pod *corev1.Pod) string {
	switch {
	case j.facts.AgentSet == nil || !j.known("Pod"):
		return agentUnknown
	case pod == nil:
		return agentMissing
	case podReady(pod):
		return agentRunning
	}
	return agentNotReady
}

// conditions adds problems from the conditions that an agent has written.
func (j *judgement) conditions(object string, pod *corev1.Pod, hs *networkv1.HostSubnet) {
	logs := "the agent's log on that node"
	exec := "on that node: weft diff"
	if pod != nil {
		logs = "kubectl -n " + j.facts.Namespace + " logs " + pod.Name
		exec = "kubectl -n " + j.facts.Namespace + " exec " + pod.Name + " -- /weft diff"
	}
	if !reported(*hs) {
		j.problem(object, logs, "its agent has not reported yet: it is starting, or of a release that does not report")
		return
	}
	for _, c := range []struct{ kind, next string }{
		{networkv1.ConditionValid, "correct the HostSubnet: kubectl edit hostsubnet " + hs.Name},
		{networkv1.ConditionReady, logs},
		{networkv1.ConditionEnginesInStep, exec},
	} {
		if found := meta.FindStatusCondition(hs.Status.Conditions, c.kind); found != nil && found.Status != metav1.ConditionTrue {
			next := c.next
			switch found.Reason { // weft diff does not show these
			case networkv1.ReasonRefused:
				next = "correct the object that the message names; " + logs
			case networkv1.ReasonNotServing:
				next = logs
			}
			j.problem(object, next, "%s", found.Message)
			if c.kind != networkv1.ConditionEnginesInStep {
				return // it explains the others
			}
		}
	}
	if found := meta.FindStatusCondition(hs.Status.Conditions, networkv1.ConditionUnobstructed); found != nil && found.Status != metav1.ConditionTrue {
		next := "docs/operations.md, Host firewalls"
		if found.Reason == networkv1.ReasonLeftovers {
			next = "docs/operations.md, Coming from OpenShift SDN"
		}
		j.warn(object, next, "%s", found.Message)
	}
	if used := hs.Status.Addresses; used.Total > 0 && used.Used >= used.Total {
		j.problem(object, "move pods to other nodes, or give the cluster larger node subnets (hostSubnetLength) for new nodes",
			"all %d addresses for pods are taken: no pod can be added", used.Total)
	} else if used.Total > 0 && used.Used*10 >= used.Total*9 {
		j.warn(object, "", "%d of %d addresses for pods are taken", used.Used, used.Total)
	}
}

// describe fills in the content of a HostSubnet.
func describe(entry *Node, hs *networkv1.HostSubnet) {
	s := &hs.Status
	entry.Address, entry.Subnet = hs.HostIP, hs.Subnet
	entry.Weft, entry.OpenVSwitch, entry.Kernel, entry.Datapath = s.Versions.Weft, s.Versions.OpenVSwitch, s.Versions.Kernel, s.Versions.Datapath
	entry.Attachments, entry.AddressesUsed, entry.AddressesTotal = int(s.Attachments), int(s.Addresses.Used), int(s.Addresses.Total)
	entry.EnginesInStep = meta.IsStatusConditionTrue(s.Conditions, networkv1.ConditionEnginesInStep)
	for _, e := range s.Engines {
		entry.Engines = append(entry.Engines, Engine{Name: e.Name, InStep: e.InStep, Items: int(e.Items), Hash: e.Hash, Failures: e.Failures})
	}
}

func nodeReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func conditionMessage(node *corev1.Node, kind corev1.NodeConditionType) string {
	for _, c := range node.Status.Conditions {
		if c.Type == kind {
			return c.Message
		}
	}
	return "it has never said that it is"
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// agentTrouble returns why an agent's pod is not ready: the reason why a container waits or ended, otherwise the agent's own conditions.
func agentTrouble(pod *corev1.Pod, hs *networkv1.HostSubnet) string {
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "PodInitializing":
			return strings.TrimSpace(c.State.Waiting.Reason + " " + c.State.Waiting.Message)
		case c.State.Terminated != nil && c.State.Terminated.ExitCode != 0:
			return fmt.Sprintf("%s ended with code %d", c.Name, c.State.Terminated.ExitCode)
		}
	}
	for _, kind := range []string{networkv1.ConditionReady, networkv1.ConditionEnginesInStep} {
		if c := meta.FindStatusCondition(hs.Status.Conditions, kind); c != nil && c.Status != metav1.ConditionTrue {
			return c.Message
		}
	}
	return "its /readyz does not answer, or says no"
}

// versions collects the versions, and warns if agents of several releases run.
func (j *judgement) versions() {
	for _, v := range []struct {
		name string
		of   func(*Node) string
	}{
		{"weft", func(n *Node) string { return n.Weft }},
		{"openVSwitch", func(n *Node) string { return n.OpenVSwitch }},
		{"kernel", func(n *Node) string { return n.Kernel }},
		{"datapath", func(n *Node) string { return n.Datapath }},
	} {
		byVersion := map[string][]string{}
		for i := range j.report.Nodes {
			if version := v.of(&j.report.Nodes[i]); version != "" {
				byVersion[version] = append(byVersion[version], j.report.Nodes[i].Name)
			}
		}
		all := []Version{}
		for version, nodes := range byVersion {
			all = append(all, Version{Version: version, Nodes: nodes})
		}
		slices.SortFunc(all, func(a, b Version) int {
			return cmp.Or(cmp.Compare(len(b.Nodes), len(a.Nodes)), cmp.Compare(a.Version, b.Version))
		})
		j.report.Versions[v.name] = all
		if v.name == "weft" && len(all) > 1 {
			j.warn(objectCluster, "finish the upgrade, or roll it back", "agents of %d releases run: %s", len(all), spell(all))
		}
	}
}

// spell lists versions, with the number of nodes that run each.
func spell(all []Version) string {
	words := make([]string, 0, len(all))
	for _, v := range all {
		words = append(words, fmt.Sprintf("%s on %d", v.Version, len(v.Nodes)))
	}
	return strings.Join(words, ", ")
}
