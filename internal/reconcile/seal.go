package reconcile

// isSeal reports whether key is that of the sealing item.
func (s *state[K, V]) isSeal(key K) bool {
	if s.makeSeal == nil {
		return false
	}
	sealKey, _ := s.makeSeal(Hash{})
	return key == sealKey
}

// seal adds the sealing item to the change if it is out of date.
func (s *state[K, V]) seal(d *due[K, V]) {
	if s.makeSeal == nil {
		return
	}
	key, value := s.makeSeal(s.desired.hash)
	delete(d.change.Delete, key)
	if have, ok := s.actual[key]; ok && value.Equal(have) {
		return
	}
	d.change.Set[key] = value
	d.seal = &key
}
