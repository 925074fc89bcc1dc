package agent

// wakeUp wakes the receiver of a channel with a buffer of one. If a wake-up is already pending, it does nothing.
func wakeUp(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
