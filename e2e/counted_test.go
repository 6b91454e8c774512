package e2e_test

import (
	"fmt"
	"os"
	"sync/atomic"
)

// counted is what the tests have done to systems, for the last line of a long
// run: "done: 412 kills, 87 leader changes, 60 storms with 540 crashes, 7 outages, 18230 orders".
var counted struct{ kills, leaders, storms, crashes, outages, orders atomic.Int64 }

func printCounted() {
	fmt.Fprintf(os.Stdout, "done: %d kills, %d leader changes, %d storms with %d crashes, %d outages, %d orders\n",
		counted.kills.Load(), counted.leaders.Load(), counted.storms.Load(), counted.crashes.Load(), counted.outages.Load(), counted.orders.Load())
}
