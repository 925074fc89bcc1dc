package cni

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

func TestWithoutAnnotations(t *testing.T) {
	if AnnotationAssignMacvlan != networkv1.AnnotationAssignMacvlan {
		t.Errorf("%s is not %s", AnnotationAssignMacvlan, networkv1.AnnotationAssignMacvlan)
	}
	long := strings.Repeat("<", 256<<10)
	for _, c := range []struct {
		command     Command
		annotations map[string]string
		want        map[string]string
	}{
		{CommandAdd, map[string]string{"a": long, AnnotationAssignMacvlan: "eth1"}, map[string]string{AnnotationAssignMacvlan: "eth1"}},
		{CommandAdd, map[string]string{"a": long, AnnotationAssignMacvlan: ""}, map[string]string{AnnotationAssignMacvlan: ""}},
		{CommandAdd, map[string]string{AnnotationAssignMacvlan: long}, map[string]string{AnnotationAssignMacvlan: long[:64]}},
		{CommandAdd, map[string]string{"a": long}, nil},
		{CommandDel, map[string]string{"a": long, AnnotationAssignMacvlan: "eth1"}, nil},
		{CommandCheck, map[string]string{"a": long, AnnotationAssignMacvlan: "eth1"}, nil},
	} {
		annotations, err := json.Marshal(c.annotations)
		if err != nil {
			t.Fatal(err)
		}
		config := fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"weft","later":[1],"runtimeConfig":{"mac":"0a:58:00:00:00:01","later":{},"io.kubernetes.cri.pod-annotations":%s}}`, annotations)
		got, err := WithoutAnnotations(c.command, config)
		if err != nil {
			t.Fatal(err)
		}
		conf, err := ParseNetConf(got)
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(conf.RuntimeConfig.PodAnnotations, c.want) || conf.RuntimeConfig.MAC == "" || conf.Name != "weft" || strings.Count(string(got), "later") != 2 || len(got) > 1<<10 {
			t.Errorf("%s: %.300s", c.command, got)
		}
	}
	for _, plain := range []string{`{"name":"a"}`, `{"name": "a", "runtimeConfig": {"mac": ""}}`, `{"name":"a","runtimeConfig":null}`} {
		if got, err := WithoutAnnotations(CommandAdd, []byte(plain)); err != nil || string(got) != plain {
			t.Errorf("%s: %s, %v", plain, got, err)
		}
	}
	for _, wrong := range []string{`[]`, `{"runtimeConfig":[]}`, `{"runtimeConfig":{"io.kubernetes.cri.pod-annotations":[]}}`} {
		_, err := WithoutAnnotations(CommandAdd, []byte(wrong))
		wantError(t, err, CodeDecode, "network configuration")
	}
}
