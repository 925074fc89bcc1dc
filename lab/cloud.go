package lab

import (
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/report"
	"weft.dev/weft/lab/stack/openstack"
)

// OpenStackEnvironment is what the openstack command needs inside the lab, as NAME=VALUE; nothing for a lab without OpenStack.
func OpenStackEnvironment(st report.Status) []string {
	if st.Config.OpenStack == "" {
		return nil
	}
	at := plan.New(st.Config).OpenStackIP
	return (&openstack.Stack{Addr: at, HostAddr: at}).Environment()
}
