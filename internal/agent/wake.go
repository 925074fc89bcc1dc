package agent

// wakeUp has whoever waits on a channel with room for one go on. Who is about to do so takes this as well.
func wakeUp(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
