package crds

import "testing"

func TestAll(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 4 {
		t.Errorf("%d definitions", len(all))
	}
	for _, crd := range all {
		if crd.Spec.Group != "network.openshift.io" {
			t.Errorf("%s is of group %s", crd.Name, crd.Spec.Group)
		}
	}
}
