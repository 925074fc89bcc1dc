package plan

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan/index"
	"weft.dev/weft/internal/vpc/objects"
)

// ipIndex has IP objects by a name and their own.
type ipIndex = index.Index[string, string, *kubeovn.IP]

// assigned has all pods, and the IP objects that assign them addresses.
type assigned struct {
	pods     map[types.UID]*corev1.Pod
	podOf    map[string]*corev1.Pod // by PodKey
	ips      map[string]*kubeovn.IP
	ipsIn    ipIndex // by the UID of the Subnet
	ipsNamed ipIndex // by the name of the Subnet, which may be that of a former one
	ipsOfPod ipIndex // by PodKey
	// gone has the UIDs of pods that do not exist any more, by the names of their IP objects. A UID is not used again.
	gone map[string]string
}

func newAssigned() assigned {
	return assigned{
		pods: map[types.UID]*corev1.Pod{}, podOf: map[string]*corev1.Pod{}, ips: map[string]*kubeovn.IP{}, ipsIn: ipIndex{}, ipsNamed: ipIndex{},
		ipsOfPod: ipIndex{}, gone: map[string]string{},
	}
}

func (a *assigned) addPod(pod *corev1.Pod) {
	a.pods[pod.UID] = pod
	a.podOf[objects.PodKey(pod.Namespace, pod.Name)] = pod
}

func (a *assigned) removePod(pod *corev1.Pod) {
	delete(a.pods, pod.UID)
	delete(a.podOf, objects.PodKey(pod.Namespace, pod.Name))
}

// podNamed returns the pod of a name; nil: there is none.
func (a *assigned) podNamed(namespace, name string) *corev1.Pod {
	return a.podOf[objects.PodKey(namespace, name)]
}

func (a *assigned) addIP(ip *kubeovn.IP) {
	a.ips[ip.Name] = ip
	a.ipsIn.Put(ip.Spec.SubnetUID, ip.Name, ip)
	a.ipsNamed.Put(ip.Spec.Subnet, ip.Name, ip)
	a.ipsOfPod.Put(objects.HolderOf(ip), ip.Name, ip)
}

func (a *assigned) removeIP(ip *kubeovn.IP) {
	delete(a.ips, ip.Name)
	a.ipsIn.Remove(ip.Spec.SubnetUID, ip.Name)
	a.ipsNamed.Remove(ip.Spec.Subnet, ip.Name)
	a.ipsOfPod.Remove(objects.HolderOf(ip), ip.Name)
}

// named returns the IP objects that name a pod, by name. They may be of a former pod of this name.
func (a *assigned) named(pod *corev1.Pod) map[string]*kubeovn.IP {
	return a.ipsOfPod[objects.PodKey(pod.Namespace, pod.Name)]
}

// ipOf returns the IP object that assigns a pod its address; nil if there is none.
func (a *assigned) ipOf(pod *corev1.Pod) *kubeovn.IP {
	return objects.FirstIP(slices.Collect(maps.Values(a.named(pod))), func(ip *kubeovn.IP) bool { return Needs(pod, ip) })
}

// podOfIP returns the pod to which an IP object assigns its address; nil: there is none, and the address is free.
func (a *assigned) podOfIP(ip *kubeovn.IP) *corev1.Pod {
	if pod := a.pods[types.UID(ip.Spec.PodUID)]; pod != nil && a.ipOf(pod) == ip {
		return pod
	}
	return nil
}

// depart records that a pod does not exist any more.
func (a *assigned) depart(pod *corev1.Pod) {
	for name, ip := range a.named(pod) {
		if ip.Spec.PodUID == string(pod.UID) {
			a.gone[name] = ip.Spec.PodUID
		}
	}
}

// ended reports whether it is certain that no pod needs the address of an IP object that is no present pod's: its pod does not exist any more,
// or has ended, or has another IP object, or cannot exist.
func (a *assigned) ended(ip *kubeovn.IP) bool {
	if a.gone[ip.Name] == ip.Spec.PodUID || a.pods[types.UID(ip.Spec.PodUID)] != nil {
		return true
	}
	return ip.Spec.PodUID == "" || len(validation.IsDNS1123Label(ip.Spec.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(ip.Spec.PodName)) > 0
}
