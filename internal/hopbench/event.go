package hopbench

import (
	"fmt"
	"strings"

	"github.com/farandole/farandole/event"
)

// Data is what the measured events carry.
type Data struct {
	Number int    `json:"number"`
	Text   string `json:"text"`
}

// In is what waits on a stage, Out is what a hop makes of it.
var (
	In  = event.Define[Data]("bench.in.v1")
	Out = event.Define[Data]("bench.out.v1")
)

// DataBytes is the size of an event's data.
const DataBytes = 256

// dataFrame is the size of the JSON around a text, with a number of 8 digits.
const dataFrame = len(`{"number":10000000,"text":""}`)

// firstNumber keeps the data of all events at the same size.
const firstNumber = 10_000_000

// KeyOf is the key of the i-th event: each has a subject of its own.
func KeyOf(i int) event.Key { return event.Key(fmt.Sprintf("ord-%08d", i)) }

// Draft is the i-th event that waits on a stage.
func Draft(i int) event.Draft {
	d := In.New(KeyOf(i), Data{Number: firstNumber + i, Text: strings.Repeat("x", DataBytes-dataFrame)})
	d.ID = "in-" + string(d.Key)
	return d
}
