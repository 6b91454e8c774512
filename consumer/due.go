package consumer

import (
	"fmt"
	"strconv"
	"strings"
)

// headerSource is where the server says from which stream it took a message:
// "TIMERS 7 <filters> <transforms> due.events.order.deadline.v1.ord-1 ...".
const headerSource = "Nats-Stream-Source"

// collect removes from the stream of timers what it has kept of a delivery
// that came from there: the server leaves a copy on its due subject. Nothing
// waits for the answer; a copy that stays takes room, nothing else.
func (c *Consumer) collect(d *delivery) {
	source := d.msg.Header[headerSource]
	if len(source) == 0 {
		return
	}
	part := strings.Split(source[0], " ")
	if len(part) < 5 || part[0] != c.bus.Names().TimersStream() {
		return
	}
	sequence, err := strconv.ParseUint(part[1], 10, 64)
	if err != nil {
		return
	}
	purge := fmt.Sprintf(`{"filter":%q,"seq":%d}`, part[4], sequence+1) // what is below seq
	if err := c.bus.Conn().Publish(c.bus.APIPrefix()+"STREAM.PURGE."+part[0], []byte(purge)); err != nil {
		c.eventLog(d, c.log.Debug()).Err(err).Msg("copy of a timer's event not purged")
	}
}
