package node

import (
	"maps"
	"strconv"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/realised"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/watermark"
)

// entering records which mode is about to be programmed. During a change of modes, nothing is reported as in effect.
func (o *Objects) entering(mode clusternetwork.Mode) {
	if now, is := o.mode.Load().(clusternetwork.Mode); is && now != mode {
		o.mode.Store(clusternetwork.Mode(""))
	}
}

// entered records which mode the network is in.
func (o *Objects) entered(mode clusternetwork.Mode) { o.mode.Store(mode) }

// Mode returns the mode that is completely in effect; "" during a change of modes, and until the first one is in effect.
func (o *Objects) Mode() clusternetwork.Mode {
	mode, _ := o.mode.Load().(clusternetwork.Mode)
	return mode
}

// Realised returns which objects are in effect on this node, by kind. engines are the engines' states. If known is false, the agent is
// still starting, and the report of the agent before it remains valid, because what that agent programmed stays.
func (o *Objects) Realised(network *overlay.Network, engines []admin.Engine) (all []admin.Realised, known bool) {
	mode, known := o.mode.Load().(clusternetwork.Mode)
	if !mode.HasVNIDs() {
		return nil, known
	}
	failing := failuresOf(network, engines)
	all = []admin.Realised{failing.kind(
		realised.EgressNetworkPolicy, o.marks.ByKind(realised.EgressNetworkPolicy), o.egressFirewalls.judged.unrealised(failing.spaces[realised.EgressNetworkPolicy]),
	)}
	all = append(all, failing.kind(realised.NetNamespace, []*watermark.Mark{o.egressIPs.Mark(), o.multicast.Mark}, o.egressIPs.Problems()))
	if mode == clusternetwork.ModeMultitenant {
		o.tenants.look(network)
		all = append(all, failing.kind(realised.VNID, []*watermark.Mark{o.tenants.Mark}, nil))
	}
	if mode == clusternetwork.ModeNetworkPolicy {
		problems := map[string]string{}
		for key, problem := range network.PolicyProblems() {
			problems[key.String()] = problem.Error()
		}
		all = append(all, failing.kind(realised.NetworkPolicy, o.marks.ByKind(realised.NetworkPolicy), problems))
	}
	return all, true
}

// failures are the objects that engines could not program.
type failures struct {
	// all has the kinds for which it is not known which objects are in effect, with the reason.
	all map[realised.Kind]string
	// objects are the objects that are not completely programmed, by name; spaces are namespaces of which all objects are affected.
	objects, spaces map[realised.Kind]map[string]string
}

// failuresOf returns the failures of the engines.
func failuresOf(network *overlay.Network, engines []admin.Engine) failures {
	f := failures{all: map[realised.Kind]string{}, objects: map[realised.Kind]map[string]string{}, spaces: map[realised.Kind]map[string]string{}}
	var owners []reconcile.Owner
	var why []string
	for i := range engines {
		for _, failure := range engines[i].Failures {
			if failure.Owner != string(reconcile.Unreadable) {
				owners, why = append(owners, reconcile.Owner(failure.Owner)), append(why, engines[i].Name+": "+failure.Message)
				continue
			}
			f.all[realised.NetNamespace] = failure.Message
			if engines[i].Name == EngineFlows {
				f.all[realised.NetworkPolicy], f.all[realised.EgressNetworkPolicy], f.all[realised.VNID] = failure.Message, failure.Message, failure.Message
			}
		}
	}
	if len(owners) == 0 {
		return f
	}
	for i, origin := range network.Origins(owners, policy.Key{}) {
		for _, object := range origin.Objects {
			f.note(object, why[i])
		}
		if origin.More { // only some of the policies are named
			f.all[realised.NetworkPolicy] = why[i]
		}
	}
	return f
}

func (f *failures) note(object overlay.Object, why string) {
	kind, into, name := realised.Kind(object.Kind), f.objects, object.Name
	switch {
	case object.Namespace != "" && object.Name == "":
		into, name = f.spaces, object.Namespace
	case object.Namespace != "":
		name = object.Namespace + "/" + object.Name
	}
	if into[kind] == nil {
		into[kind] = map[string]string{}
	}
	into[kind][name] = why
}

// kind returns which objects of one kind are in effect: those up to the lowest mark, except for objects with a problem.
func (f *failures) kind(kind realised.Kind, marks []*watermark.Mark, problems map[string]string) admin.Realised {
	r := admin.Realised{Kind: string(kind), Exceptions: problems}
	known, lowest := true, uint64(0)
	for i, mark := range marks {
		version, ok := mark.Version()
		if known = known && ok; i == 0 || version < lowest {
			lowest = version
		}
		if err := mark.Why(); err != nil {
			r.Reason = err.Error()
		}
	}
	if r.Exceptions == nil {
		r.Exceptions = map[string]string{}
	}
	maps.Copy(r.Exceptions, f.objects[kind])
	switch {
	case f.all[kind] != "":
		r.Reason = f.all[kind]
	case known:
		r.Version = strconv.FormatUint(lowest, 10)
	}
	return r
}
