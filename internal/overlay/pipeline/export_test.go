package pipeline

// SetRoom sets the greatest number of rules of a direction in a stage. Call it before adding rules.
func (x *Conjunctions) SetRoom(room int) { x.room = room }
