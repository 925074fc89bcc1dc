package podlink

// Error implements error.
func (d *Difference) Error() string { return d.Object + ": " + d.Problem }
