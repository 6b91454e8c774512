package event

import "time"

// ScheduleAt is the value of the header Nats-Schedule that makes the server
// publish a message once, at due by its clock (NATS ADR-51). A time that has
// passed means at once. The server's own grain is about a second.
func ScheduleAt(due time.Time) string { return "@at " + due.UTC().Format(time.RFC3339Nano) }
