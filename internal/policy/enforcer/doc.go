// Package enforcer keeps the effect of NetworkPolicies on the pods of one node, for one network: which pods are attached, which are
// closed until their isolation is known, which permissions were revoked, and which policies are not fully enforced. It is independent of
// engines: a Compiler compiles and commits, and Revocations end what an engine's caches or conntrack still allow.
//
//	e := enforcer.New(enforcer.Options{Node: name, Revocations: enforcer.NewRevocations(...)})
//	e.Update(ctx, change)               // objects, from the API server; may come before Compile
//	e.Compile(compiler, ranges)         // once the network isolates by policies
//	e.Enforce(true)                     // under the lock: from now on changes are handed over
//	e.Attach(&rec); e.Await(ctx, &rec)  // ADD: returns once the pod's fragment is handed over
//	e.Detach(rec.Key())                 // DEL
//
// # Locks
//
// Options.Lock guards the Enforcer and its Compiler. If a network also hands over fragments of pods for other reasons, it must pass the
// lock that it holds meanwhile, so that no older fragment follows a newer one. The methods' comments say whether they take the lock.
// Indexing all objects of a large cluster takes seconds: it runs without the lock, which is taken only for the result.
package enforcer
