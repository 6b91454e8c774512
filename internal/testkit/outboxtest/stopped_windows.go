package outboxtest

// stopped needs a signal that stops a process.
func stopped(r *rig) { r.Skip("Windows cannot stop a process") }
