package podlink

// Difference is one difference between a pod's interface and its desired state. [podveth.Pods.Check] joins them.
type Difference struct {
	// Object is what differs: "host end veth1a2b3c", "pod end eth0", "route 0.0.0.0/0 ...".
	Object string
	// Problem is a short clause: "does not exist", "mtu is 1500, not 1450".
	Problem string
}

// Error implements error.
func (d *Difference) Error() string { return d.Object + ": " + d.Problem }
