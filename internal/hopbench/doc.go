// Package hopbench measures the hop, the unit of work of a Farandole system: consume
// an event, recognise duplicates, emit one event, acknowledge.
//
// A [Stage] is a system of its own on the server to measure: streams and buckets
// under a random prefix, made for the measurement and deleted after it, whatever
// happens but the death of this process. Nothing else at the server is read or
// changed. [Run] makes a stage, lets events wait there, times a [Runner] that
// turns each of them into another one, and checks at the server that it did.
//
// "farandole bench" measures Farandole; the module bench/ puts other runners
// beside it, on the same stage.
package hopbench
