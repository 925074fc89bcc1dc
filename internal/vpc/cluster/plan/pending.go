package plan

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/vpc/binding"
	"weft.dev/weft/internal/vpc/cluster/plan/index"
	"weft.dev/weft/internal/vpc/cluster/plan/topology"
)

// podIndex has pods by a name and their UIDs.
type podIndex = index.Index[string, types.UID, *corev1.Pod]

// pending has the pods that may need an address and have none, and decides which of them a plan binds again. Only a change of the pod, of its
// namespace or of a Subnet that concerns them makes a plan bind a pod.
type pending struct {
	namespaces map[string]*corev1.Namespace
	choosing   index.Index[string, string, struct{}] // names of namespaces, by a Subnet that their annotation names
	// open are the pods by namespace, without those that name a Subnet themselves: askingIn has these by namespace, and asking by Subnet.
	open, askingIn, asking podIndex
	// changed are the pods to bind; all: all pods.
	changed map[types.UID]*corev1.Pod
	all     bool
	wants   wants
	// waiting has the reasons why pods wait, by "<namespace>/<name>".
	waiting map[string]string
}

func newPending() pending {
	return pending{
		namespaces: map[string]*corev1.Namespace{}, choosing: index.Index[string, string, struct{}]{}, open: podIndex{}, askingIn: podIndex{},
		asking: podIndex{}, changed: map[types.UID]*corev1.Pod{}, wants: newWants(), waiting: map[string]string{},
	}
}

// again makes the next plan bind all pods.
func (p *pending) again() {
	p.all, p.changed = true, fresh(p.changed)
	p.wants = newWants()
	clear(p.waiting)
}

// done resets the changes for the next plan.
func (p *pending) done() { p.all, p.changed = false, fresh(p.changed) }

// setNamespace sets a namespace; nil: it was deleted.
func (p *pending) setNamespace(name string, o *corev1.Namespace) {
	before := p.namespaces[name]
	same := before != nil && o != nil && maps.Equal(before.Labels, o.Labels) &&
		before.Annotations[kubeovn.AnnotationLogicalSwitch] == o.Annotations[kubeovn.AnnotationLogicalSwitch] &&
		before.Annotations[placement.AnnotationNetwork] == o.Annotations[placement.AnnotationNetwork]
	if before != nil {
		for _, subnet := range binding.Listed(before.Annotations) {
			p.choosing.Remove(subnet, name)
		}
	}
	if o == nil {
		delete(p.namespaces, name)
	} else {
		p.namespaces[name] = o
		for _, subnet := range binding.Listed(o.Annotations) {
			p.choosing.Put(subnet, name, struct{}{})
		}
	}
	if !same {
		maps.Copy(p.changed, p.open[name])
		maps.Copy(p.changed, p.askingIn[name])
	}
}

// add adds a pod, which the next plan binds.
func (p *pending) add(pod *corev1.Pod) {
	p.changed[pod.UID] = pod
	if name := binding.Asked(pod.Annotations); name != "" {
		p.asking.Put(name, pod.UID, pod)
		p.askingIn.Put(pod.Namespace, pod.UID, pod)
		return
	}
	p.open.Put(pod.Namespace, pod.UID, pod)
}

// remove removes a pod, and returns the names of the Subnets that might have assigned it an address: it is free for others.
func (p *pending) remove(pod *corev1.Pod) (subnets []string) {
	if name := binding.Asked(pod.Annotations); name != "" {
		p.asking.Remove(name, pod.UID)
		p.askingIn.Remove(pod.Namespace, pod.UID)
	} else {
		p.open.Remove(pod.Namespace, pod.UID)
	}
	delete(p.changed, pod.UID)
	key := nameOf(pod)
	delete(p.waiting, key)
	return p.wants.remove(key)
}

// rebound makes the plan bind the pods whose binding a changed Subnet may change: those that name the Subnet, and those of namespaces that it
// names, or that name it.
func (p *pending) rebound(r topology.Rebound) {
	maps.Copy(p.changed, p.asking[r.Name()])
	for namespace := range p.choosing[r.Name()] {
		maps.Copy(p.changed, p.open[namespace])
	}
	for _, b := range []*binding.Subnet{r.Before, r.Now} {
		if b == nil {
			continue
		}
		for _, namespace := range b.Namespaces {
			maps.Copy(p.changed, p.open[namespace])
		}
		for _, selector := range b.Selectors {
			p.selected(selector)
		}
	}
}

// selected makes the plan bind the pods of the namespaces that the selector selects.
func (p *pending) selected(selector labels.Selector) {
	for namespace, pods := range p.open {
		if n := p.namespaces[namespace]; n != nil && selector.Matches(labels.Set(n.Labels)) {
			maps.Copy(p.changed, pods)
		}
	}
}

// each visits the pods to bind. If these are all pods, a namespace without bindings is skipped as a whole.
func (p *pending) each(bindings *binding.Subnets, visit func(*corev1.Pod)) {
	for _, pod := range p.changed {
		visit(pod)
	}
	if !p.all {
		return
	}
	for _, pods := range p.asking {
		for _, pod := range pods {
			visit(pod)
		}
	}
	for name, pods := range p.open {
		if _, bound := bindings.Of(placement.Pod{Namespace: name}, p.namespace(name)); !bound {
			continue
		}
		for _, pod := range pods {
			visit(pod)
		}
	}
}

// bind returns a pod's binding; false: it is bound to no Subnet.
func (p *pending) bind(bindings *binding.Subnets, pod *corev1.Pod) (binding.Bound, bool) {
	return bindings.Of(placement.Pod{Namespace: pod.Namespace, Name: pod.Name, Annotations: pod.Annotations}, p.namespace(pod.Namespace))
}

func (p *pending) namespace(name string) placement.Namespace {
	n := p.namespaces[name]
	if n == nil {
		return placement.Namespace{}
	}
	return placement.Namespace{Name: n.Name, Annotations: n.Annotations, Labels: n.Labels}
}

// nameOf returns "<namespace>/<name>".
func nameOf(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// wants are the Subnets to which pods without an address are bound: any of them may assign the address.
type wants struct {
	pods    index.Index[string, string, *corev1.Pod] // by the Subnet's name and the pod's "<namespace>/<name>"
	subnets map[string][]string                      // by the pod's
}

func newWants() wants {
	return wants{pods: index.Index[string, string, *corev1.Pod]{}, subnets: map[string][]string{}}
}

// add adds a pod that is bound to the Subnets.
func (w *wants) add(key string, pod *corev1.Pod, subnets []string) {
	for _, name := range subnets {
		w.pods.Put(name, key, pod)
		w.subnets[key] = append(w.subnets[key], name)
	}
}

// remove removes a pod, and returns the Subnets to which it was bound.
func (w *wants) remove(key string) (subnets []string) {
	subnets = w.subnets[key]
	delete(w.subnets, key)
	for _, name := range subnets {
		w.pods.Remove(name, key)
	}
	return subnets
}
