// Package podveth programs the interfaces of pods in the kernel. [Pods] creates, checks and reaps veth pairs and pre-plugged ports. It is used
// during a CNI ADD and works without the engine. Its links carry [link.PodAliasPrefix] and are never managed by the engine.
package podveth
