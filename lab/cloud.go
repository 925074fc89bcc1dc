package lab

import (
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/report"
	"weft.dev/weft/lab/stack/openstack"
)

// OpenStackEnvironment returns the environment of the openstack command inside the lab, as NAME=VALUE; none for a lab without OpenStack.
func OpenStackEnvironment(st report.Status) []string {
	if st.Config.OpenStack == "" {
		return nil
	}
	at := plan.New(st.Config).OpenStackIP
	return (&openstack.Stack{Addr: at, HostAddr: at}).Environment()
}
