package main

import (
	"context"
	"time"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/hopbench"
)

const nameDecodeBinary = "decode binary"

func (b *bench) codecs(ctx context.Context) error {
	e, err := sampleEvent()
	if err != nil {
		return err
	}
	binary, err := event.Encode(e)
	if err != nil {
		return err
	}
	structured, err := event.EncodeStructured(e)
	if err != nil {
		return err
	}
	b.results.Codec, err = b.costs(ctx, "codec", []small{
		{"encode binary", func() error { _, err := event.Encode(e); return err }},
		{nameDecodeBinary, func() error { _, err := event.Decode(binary.Header, binary.Data); return err }},
		{"encode structured", func() error { _, err := event.EncodeStructured(e); return err }},
		{"decode structured", func() error { _, err := event.Decode(structured.Header, structured.Data); return err }},
	})
	if err != nil {
		return err
	}
	if err := b.title("codec: one event of %d bytes with %d headers, median of %d", hopbench.DataBytes, len(binary.Header), b.reps); err != nil {
		return err
	}
	return b.printCosts(b.results.Codec)
}

// sampleEvent is an event as a handler emits it.
func sampleEvent() (event.Event, error) {
	return hopbench.Draft(0).Seal(event.Identity{
		ID: "5e3b8c1a-7f2d-5a4e-9c6b-1d2e3f4a5b6c", Source: "/" + hopbench.ConsumerName, Time: time.Now().UTC(),
		Causation: "in-ord-00000000",
	})
}
