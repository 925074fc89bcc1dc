package supervisor

import (
	"context"
	"path/filepath"

	"weft.dev/weft/lab/controlplane"
	"weft.dev/weft/lab/process"
)

// kubectl is Kubernetes' client with the administrator's identity. It ignores proxies in the environment.
type kubectl struct {
	group *process.Group
	plane *controlplane.Plane
}

// run returns what the client prints.
func (k kubectl) run(ctx context.Context, stdin string, args ...string) (string, error) {
	argv := append([]string{"env", "NO_PROXY=*", filepath.Join(k.plane.Bin, "kubectl"), "--kubeconfig=" + k.plane.Lab.Kubeconfig()}, args...)
	return k.group.Run(ctx, stdin, argv...)
}
