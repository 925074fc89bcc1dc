package pipeline

// SetRoom sets how many rules of a direction one stage has room for, before there are any.
func (x *Conjunctions) SetRoom(room int) { x.room = room }
