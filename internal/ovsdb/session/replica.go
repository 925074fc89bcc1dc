package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync"

	"github.com/ovn-kubernetes/libovsdb/model"
)

// Kinds of changes of a row in a <row-update2> (ovsdb-server(7), 4.1.14).
const (
	rowInitial = "initial"
	rowInsert  = "insert"
	rowModify  = "modify"
	rowDelete  = "delete"
)

// exactNumbers bounds the integers that a JSON number holds exactly.
const exactNumbers = 1 << 53

// updates is a <table-updates2>: of each table and UUID, the columns by the kind of change.
type updates map[string]map[string]map[string]map[string]any

// replica is a copy of the tables of a database. One goroutine applies updates; each is seen whole or not at all.
type replica struct {
	mu     sync.RWMutex
	tables map[string]*table
}

// table is the copy of one table. Rows are pointers to structs of kind. A row is replaced and never written to.
type table struct {
	kind    reflect.Type
	uuid    int
	columns map[string]int // the fields by column
	rows    map[string]any
}

// version is a new version of a row; without a value, the row is deleted.
type version struct {
	table *table
	uuid  string
	value any
}

func newReplica(tables map[string]model.Model) *replica {
	r := &replica{tables: make(map[string]*table, len(tables))}
	for name, of := range tables {
		t := &table{kind: reflect.TypeOf(of).Elem(), uuid: -1, columns: map[string]int{}, rows: map[string]any{}}
		for field := range t.kind.Fields() {
			switch column := field.Tag.Get("ovsdb"); column {
			case "":
			case "_uuid":
				t.uuid = field.Index[0]
			default:
				t.columns[column] = field.Index[0]
			}
		}
		r.tables[name] = t
	}
	return r
}

// apply applies an update and returns the UUIDs of the rows that changed, by table. If it fails, nothing is applied, and the replica no longer
// matches the database.
func (r *replica) apply(encoded json.RawMessage) (map[string][]string, error) {
	var all updates
	if err := json.Unmarshal(encoded, &all); err != nil {
		return nil, fmt.Errorf("decode an update: %w", err)
	}
	changed := map[string][]string{}
	var versions []version
	d := newDecoding()
	for name, changes := range all {
		t := r.tables[name]
		if t == nil || len(changes) == 0 {
			continue
		}
		for uuid, change := range changes {
			value, err := t.changed(d, uuid, change)
			if err != nil {
				return nil, fmt.Errorf("row %s of table %s: %w", uuid, name, err)
			}
			uuid = d.text(uuid)
			versions, changed[name] = append(versions, version{table: t, uuid: uuid, value: value}), append(changed[name], uuid)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range versions {
		if v.value == nil {
			delete(v.table.rows, v.uuid)
			continue
		}
		v.table.rows[v.uuid] = v.value
	}
	return changed, nil
}

// each calls do for each row of a table. do must not block.
func (r *replica) each(name string, do func(uuid string, row any)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if t := r.tables[name]; t != nil {
		for uuid, row := range t.rows {
			do(uuid, row)
		}
	}
}

// row returns a row of a table; nil: there is none.
func (r *replica) row(name, uuid string) any {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if t := r.tables[name]; t != nil {
		return t.rows[uuid]
	}
	return nil
}

// changed returns the version of a row after a change, nil if the row is deleted.
func (t *table) changed(d *decoding, uuid string, change map[string]map[string]any) (any, error) {
	for kind, columns := range change {
		switch kind {
		case rowDelete:
			return nil, nil //nolint:nilnil // no row
		case rowInitial, rowInsert:
			next := reflect.New(t.kind)
			if t.uuid >= 0 {
				next.Elem().Field(t.uuid).SetString(d.text(uuid))
			}
			return next.Interface(), t.set(next.Elem(), columns, d.assign)
		case rowModify:
			have, ok := t.rows[uuid]
			if !ok {
				return nil, errors.New("the server changed a row that it has not sent")
			}
			next := reflect.New(t.kind)
			next.Elem().Set(reflect.ValueOf(have).Elem())
			return next.Interface(), t.set(next.Elem(), columns, d.differ)
		}
	}
	return nil, fmt.Errorf("the change is neither %s, %s, %s nor %s", rowInitial, rowInsert, rowModify, rowDelete)
}

// set changes the columns of a row by write. Columns that the row does not have are ignored.
func (t *table) set(next reflect.Value, columns map[string]any, write func(reflect.Value, any) error) error {
	for column, value := range columns {
		field, ok := t.columns[column]
		if !ok {
			continue
		}
		if err := write(next.Field(field), value); err != nil {
			return fmt.Errorf("column %s: %w", column, err)
		}
	}
	return nil
}

// assign sets a field to a <value> (RFC 7047, 5.1). A field of a slice is a set, one of a map a map, one of a pointer an optional value,
// and others are one value.
func (d *decoding) assign(field reflect.Value, value any) error {
	switch field.Kind() {
	case reflect.Slice:
		return d.assignSet(field, value)
	case reflect.Map:
		return d.assignMap(field, value)
	case reflect.Pointer:
		return d.assignOptional(field, value)
	default:
		return d.assignAtom(field, value)
	}
}

func (d *decoding) assignSet(field reflect.Value, value any) error {
	atoms, err := setOf(value)
	if err != nil {
		return err
	}
	if len(atoms) == 0 {
		field.SetZero()
		return nil
	}
	set := reflect.MakeSlice(field.Type(), len(atoms), len(atoms))
	for i, atom := range atoms {
		if err := d.assignAtom(set.Index(i), atom); err != nil {
			return err
		}
	}
	field.Set(set)
	return nil
}

func (d *decoding) assignMap(field reflect.Value, value any) error {
	pairs, err := pairsOf(value)
	if err != nil {
		return err
	}
	if len(pairs) == 0 {
		field.SetZero()
		return nil
	}
	all := reflect.MakeMapWithSize(field.Type(), len(pairs))
	for _, pair := range pairs {
		if err := d.assignPair(all, pair); err != nil {
			return err
		}
	}
	field.Set(d.dict(all))
	return nil
}

func (d *decoding) assignOptional(field reflect.Value, value any) error {
	atoms, err := setOf(value)
	switch {
	case err != nil:
		return err
	case len(atoms) == 0:
		field.SetZero()
		return nil
	case len(atoms) == 1:
		field.Set(reflect.New(field.Type().Elem())) // other versions of the row share the former value
		return d.assignAtom(field.Elem(), atoms[0])
	default:
		return fmt.Errorf("%d values, want one at most", len(atoms))
	}
}

// differ changes a field by a difference (ovsdb-server(7), 4.1.14): of sets, the elements that are in one of them; of maps, the pairs whose
// key is in one of them, and the new pairs of other values. Otherwise it is the new value. The field's slice or map stays as it is: other
// versions of the row share it.
func (d *decoding) differ(field reflect.Value, value any) error {
	difference := reflect.New(field.Type()).Elem()
	if err := d.assign(difference, value); err != nil {
		return err
	}
	switch field.Kind() {
	case reflect.Slice:
		field.Set(differentSet(field, difference))
	case reflect.Map:
		field.Set(differentMap(field, difference))
	default:
		field.Set(difference)
	}
	return nil
}

func differentSet(have, difference reflect.Value) reflect.Value {
	changed := make(map[any]bool, difference.Len())
	for _, element := range difference.Seq2() {
		changed[element.Interface()] = true
	}
	next := reflect.MakeSlice(have.Type(), 0, have.Len()+difference.Len())
	for _, element := range have.Seq2() {
		if changed[element.Interface()] {
			delete(changed, element.Interface())
			continue
		}
		next = reflect.Append(next, element)
	}
	for _, element := range difference.Seq2() {
		if changed[element.Interface()] {
			next = reflect.Append(next, element)
		}
	}
	return next
}

func differentMap(have, difference reflect.Value) reflect.Value {
	next := reflect.MakeMapWithSize(have.Type(), have.Len()+difference.Len())
	for key, value := range have.Seq2() {
		next.SetMapIndex(key, value)
	}
	for key, value := range difference.Seq2() {
		if former := have.MapIndex(key); former.IsValid() && former.Equal(value) {
			next.SetMapIndex(key, reflect.Value{})
			continue
		}
		next.SetMapIndex(key, value)
	}
	return next
}

// setOf returns the atoms of a <set>, or of a single <atom>.
func setOf(value any) ([]any, error) {
	list, ok := value.([]any)
	if !ok || isUUID(list) {
		return []any{value}, nil
	}
	return tagged(list, "set")
}

// pairsOf returns the pairs of a <map>.
func pairsOf(value any) ([]any, error) {
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("%.64v is no map", value)
	}
	return tagged(list, "map")
}

// tagged returns the elements of ["tag", [element, ...]].
func tagged(list []any, tag string) ([]any, error) {
	if len(list) == 2 && list[0] == tag {
		if elements, ok := list[1].([]any); ok {
			return elements, nil
		}
	}
	return nil, fmt.Errorf("%.64v is no %s", list, tag)
}

func isUUID(list []any) bool { return len(list) == 2 && list[0] == "uuid" }

// assignPair adds a <pair> to a map.
func (d *decoding) assignPair(all reflect.Value, pair any) error {
	list, ok := pair.([]any)
	if !ok || len(list) != 2 {
		return fmt.Errorf("%.64v is no pair", pair)
	}
	key, value := reflect.New(all.Type().Key()).Elem(), reflect.New(all.Type().Elem()).Elem()
	if err := d.assignAtom(key, list[0]); err != nil {
		return err
	}
	if err := d.assignAtom(value, list[1]); err != nil {
		return err
	}
	all.SetMapIndex(key, value)
	return nil
}

// assignAtom sets a field to an <atom>. A UUID is a string.
func (d *decoding) assignAtom(field reflect.Value, atom any) error {
	switch atom := atom.(type) {
	case string:
		if field.Kind() == reflect.String {
			field.SetString(d.text(atom))
			return nil
		}
	case bool:
		if field.Kind() == reflect.Bool {
			field.SetBool(atom)
			return nil
		}
	case float64:
		if field.CanInt() && atom == math.Trunc(atom) && math.Abs(atom) < exactNumbers && !field.OverflowInt(int64(atom)) {
			field.SetInt(int64(atom))
			return nil
		}
	case []any:
		if text, ok := uuidOf(atom); ok && field.Kind() == reflect.String {
			field.SetString(d.text(text))
			return nil
		}
	}
	return fmt.Errorf("%.64v is no value for a field of type %s", atom, field.Type())
}

func uuidOf(list []any) (string, bool) {
	if !isUUID(list) {
		return "", false
	}
	text, ok := list[1].(string)
	return text, ok
}
