package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"weft.dev/weft/deploy"
)

// manifestCommands returns the command line of each container of Weft's in a manifest, by the container's name.
func manifestCommands(t *testing.T, objects []*unstructured.Unstructured) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, object := range objects {
		for _, list := range []string{"initContainers", "containers"} {
			containers, _, err := unstructured.NestedSlice(object.Object, "spec", "template", "spec", list)
			if err != nil {
				t.Fatal(err)
			}
			for _, item := range containers {
				container, _ := item.(map[string]any)
				name, _ := container["name"].(string)
				command, _, err := unstructured.NestedStringSlice(container, "command")
				if err != nil {
					t.Fatal(err)
				}
				args, _, err := unstructured.NestedStringSlice(container, "args")
				if err != nil {
					t.Fatal(err)
				}
				if len(command) > 0 && command[0] == "/weft" {
					all[object.GetName()+"/"+name] = slices.Concat(command[1:], args)
				}
			}
		}
	}
	return all
}

// The programs take every command line of the manifests.
func TestManifestsParse(t *testing.T) {
	for name, objects := range map[string]func() ([]*unstructured.Unstructured, error){
		"weft.yaml": deploy.Objects, "weft-flannel.yaml": deploy.FlannelObjects, "weft-vpc.yaml": deploy.VPCObjects, "weft-neutron.yaml": deploy.NeutronObjects,
	} {
		all, err := objects()
		if err != nil {
			t.Fatal(err)
		}
		commands := manifestCommands(t, all)
		for _, must := range []string{"weft-agent/agent", "weft-agent/install-plugin", "weft-controller/controller"} {
			if commands[must] == nil {
				t.Errorf("%s: no container %s", name, must)
			}
		}
		for container, args := range commands {
			if err := parses(args); err != nil {
				t.Errorf("%s: %s: weft %s: %v", name, container, strings.Join(args, " "), err)
			}
		}
	}
}

// The agent and the controller have every flag that the chart may give them, whatever the values.
func TestChartsFlagsExist(t *testing.T) {
	flag := regexp.MustCompile(`(?m)^ +- --([a-z-]+)`)
	for program, least := range map[string]int{"agent": 12, "controller": 12} {
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "chart", "templates", program+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		cmd, _, err := Weft(Environment{}).Find([]string{program})
		if err != nil {
			t.Fatal(err)
		}
		found := flag.FindAllStringSubmatch(string(text), -1)
		if len(found) < least {
			t.Errorf("%d flags found in the template of the %s, want at least %d", len(found), program, least)
		}
		for _, f := range found {
			if cmd.Flag(f[1]) == nil {
				t.Errorf("weft %s has no flag --%s", program, f[1])
			}
		}
	}
}
