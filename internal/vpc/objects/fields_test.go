package objects_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/objects"
)

// documented is what the page says of one kind: fields that are served, that have no effect, and that are not served, with what is told.
type documented struct{ served, without, unserved map[string]string }

// page reads the tables of docs/vpc-fields.md. The first column is the kind, the second one has fields, the third what a condition says.
func page(t *testing.T) map[string]documented {
	t.Helper()
	text, err := os.ReadFile("../../../docs/vpc-fields.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]documented{}
	section := ""
	for line := range strings.Lines(string(text)) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(heading)
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) < 2 || !strings.Contains(cells[1], "`") {
			continue
		}
		kind := strings.TrimSpace(cells[0])
		if kinds[kind].served == nil {
			kinds[kind] = documented{map[string]string{}, map[string]string{}, map[string]string{}}
		}
		into := map[string]map[string]string{
			"Fields that are served": kinds[kind].served, "Fields without effect": kinds[kind].without, "Fields that are not served": kinds[kind].unserved,
		}[section]
		for i, field := range strings.Split(cells[1], "`") {
			if i%2 == 0 {
				continue
			}
			if into == nil || kinds[kind].served[field]+kinds[kind].without[field]+kinds[kind].unserved[field] != "" {
				t.Errorf("section %q: %s of %s is there twice, or in no section", section, field, kind)
				continue
			}
			into[field] = cells[len(cells)-1]
		}
	}
	return kinds
}

// field is a field of a spec: its path, and a function that sets it.
type field struct {
	path string
	set  func(spec reflect.Value)
}

// fieldsOf returns the fields of a spec. Structs of the API in lists have fields of their own; others are one field.
func fieldsOf(spec reflect.Type, path string, at func(reflect.Value) reflect.Value) []field {
	var all []field
	for i := range spec.NumField() {
		f := spec.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		get := func(v reflect.Value) reflect.Value { return at(v).Field(i) }
		if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct && f.Type.Elem().PkgPath() == spec.PkgPath() {
			all = append(all, fieldsOf(f.Type.Elem(), path+name+".", func(v reflect.Value) reflect.Value {
				list := get(v)
				if list.Len() == 0 {
					list.Set(reflect.MakeSlice(list.Type(), 1, 1))
				}
				return list.Index(0)
			})...)
			continue
		}
		all = append(all, field{path + name, func(v reflect.Value) { fill(get(v), path+name) }})
	}
	return all
}

// special are values of fields whose effect depends on the value.
func special() map[string]any {
	return map[string]any{
		"gatewayType": "centralized", "protocol": "Dual", "cidrBlock": "10.0.1.0/24,fd00::/64", "type": "share",
		"externalSubnets": []string{"one", "two"}, "enableLb": new(true), "replicas": int32(2),
	}
}

func fill(v reflect.Value, path string) {
	if value, ok := special()[path]; ok && reflect.TypeOf(value) == v.Type() {
		v.Set(reflect.ValueOf(value))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint32:
		v.SetUint(1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("x"), reflect.ValueOf("x"))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		if enabled := v.Elem().FieldByName("Enabled"); enabled.IsValid() {
			enabled.SetBool(true)
		}
	}
}

// kind is a kind of Kube-OVN's: a spec, and what the code says of it, as a reader of the conditions sees it.
type kind struct {
	spec any
	told func(spec any) []string
}

func nothing(any) []string { return nil }

// refused returns the fields of problems that say that a value is not served.
func refused(problems objects.Problems) []string {
	var fields []string
	for _, p := range problems {
		if strings.Contains(p.Text, "is not served") {
			fields = append(fields, p.Field)
		}
	}
	return fields
}

func kinds() map[string]kind {
	return map[string]kind{
		"Vpc": {&kubeovn.VpcSpec{}, func(spec any) []string {
			v, problems := objects.ParseVPC(&kubeovn.Vpc{Spec: *spec.(*kubeovn.VpcSpec)})
			return append(v.Unsupported, refused(problems)...)
		}},
		"Subnet": {&kubeovn.SubnetSpec{CIDRBlock: "10.0.1.0/24"}, func(spec any) []string {
			s, problems, _ := objects.ParseSubnet(&kubeovn.Subnet{Spec: *spec.(*kubeovn.SubnetSpec)})
			return append(s.Unsupported, refused(problems)...)
		}},
		"VpcNatGateway": {&kubeovn.VpcNatGatewaySpec{}, func(spec any) []string {
			g, problems, _ := objects.ParseGateway(&kubeovn.VpcNatGateway{Spec: *spec.(*kubeovn.VpcNatGatewaySpec)})
			return append(g.Unsupported, refused(problems)...)
		}},
		"IptablesEIP": {&kubeovn.IptablesEIPSpec{}, func(spec any) []string {
			e, problems := objects.ParseEIP(&kubeovn.IptablesEIP{Spec: *spec.(*kubeovn.IptablesEIPSpec)})
			return append(e.Unsupported, refused(problems)...)
		}},
		"IptablesSnatRule": {&kubeovn.IptablesSnatRuleSpec{}, func(spec any) []string {
			_, problems := objects.ParseSNAT(&kubeovn.IptablesSnatRule{Spec: *spec.(*kubeovn.IptablesSnatRuleSpec)})
			return refused(problems)
		}},
		"IptablesDnatRule": {&kubeovn.IptablesDnatRuleSpec{}, func(spec any) []string {
			_, problems := objects.ParseDNAT(&kubeovn.IptablesDnatRule{Spec: *spec.(*kubeovn.IptablesDnatRuleSpec)})
			return refused(problems)
		}},
		"IptablesFIPRule": {&kubeovn.IptablesFIPRuleSpec{}, func(spec any) []string {
			_, problems := objects.ParseFIP(&kubeovn.IptablesFIPRule{Spec: *spec.(*kubeovn.IptablesFIPRuleSpec)})
			return refused(problems)
		}},
		"QoSPolicy": {&kubeovn.QoSPolicySpec{}, nothing}, // nothing reads it
		"IP":        {&kubeovn.IPSpec{}, nothing},
	}
}

// TestFieldsAreDocumented compares docs/vpc-fields.md with the API's types and with the code: each field of each kind is on the page once, and
// what the page says of a field that is not served is what the object's condition says.
func TestFieldsAreDocumented(t *testing.T) {
	pages := page(t)
	for name, k := range kinds() {
		told := pages[name]
		left := map[string]bool{}
		for _, fields := range []map[string]string{told.served, told.without, told.unserved} {
			for field := range fields {
				left[field] = true
			}
		}
		base := reflect.ValueOf(k.spec).Elem()
		for _, f := range fieldsOf(base.Type(), "", func(v reflect.Value) reflect.Value { return v }) {
			if !left[f.path] {
				t.Errorf("docs/vpc-fields.md lacks field %s of %s", f.path, name)
			}
			delete(left, f.path)
			spec := reflect.New(base.Type())
			spec.Elem().Set(base)
			f.set(spec.Elem())
			said := k.told(spec.Interface())
			words, unserved := told.unserved[f.path]
			switch {
			case !unserved && len(said) > 0:
				t.Errorf("field %s of %s is named as not served (%v), and docs/vpc-fields.md does not say so", f.path, name, said)
			case unserved && len(said) == 0 && !strings.HasPrefix(words, "no condition"):
				t.Errorf("docs/vpc-fields.md says that a condition names field %s of %s, and none does", f.path, name)
			case unserved && len(said) > 0 && !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(words, "`"+s+"`") }):
				t.Errorf("the condition of %s names %v for %s; docs/vpc-fields.md says %q", name, said, f.path, words)
			}
		}
		for field := range left {
			t.Errorf("docs/vpc-fields.md has field %s of %s, which does not exist", field, name)
		}
	}
	for name := range pages {
		if _, ok := kinds()[name]; !ok {
			t.Errorf("docs/vpc-fields.md has a kind %s", name)
		}
	}
}

// TestFieldsOfIP: the fields of an IP object that the page says are served are those that the controller writes.
func TestFieldsOfIP(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../cluster/plan/pods.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var written []string
	ast.Inspect(file, func(n ast.Node) bool {
		literal, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		if selector, ok := literal.Type.(*ast.SelectorExpr); !ok || selector.Sel.Name != "IPSpec" {
			return true
		}
		for _, element := range literal.Elts {
			name := element.(*ast.KeyValueExpr).Key.(*ast.Ident).Name
			f, _ := reflect.TypeFor[kubeovn.IPSpec]().FieldByName(name)
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			written = append(written, tag)
		}
		return true
	})
	var served []string
	for field := range page(t)["IP"].served {
		served = append(served, field)
	}
	slices.Sort(written)
	slices.Sort(served)
	if len(written) == 0 || !slices.Equal(written, served) {
		t.Errorf("the controller writes %v; docs/vpc-fields.md says %v", written, served)
	}
}

// TestNamespacesOfGateways: the namespace in which gateways run is no field that is not served.
func TestNamespacesOfGateways(t *testing.T) {
	e, _ := objects.ParseEIP(&kubeovn.IptablesEIP{ObjectMeta: metav1.ObjectMeta{Name: "e"}, Spec: kubeovn.IptablesEIPSpec{Namespace: kubeovn.ConfigNamespace}})
	if len(e.Unsupported) > 0 {
		t.Errorf("the gateways' namespace: %v", e.Unsupported)
	}
}
