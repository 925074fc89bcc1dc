package reconcile

// isSeal reports whether key is that of the sealing item.
func (l *Loop[K, V]) isSeal(key K) bool {
	if l.opts.Seal == nil {
		return false
	}
	sealKey, _ := l.opts.Seal(Hash{})
	return key == sealKey
}

// seal adds the sealing item to the change if it is out of date.
func (l *Loop[K, V]) seal(r *round[K, V]) {
	if l.opts.Seal == nil {
		return
	}
	key, value := l.opts.Seal(l.desired.hash)
	delete(r.change.Delete, key)
	if have, ok := l.actual[key]; ok && value.Equal(have) {
		return
	}
	r.change.Set[key] = value
	r.seal = &key
}
