package dedup

import (
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/event"
)

// A page is one message on ledger.<consumer>.<partition>.page. Its owner writes one
// for each batch that ends events of the partition, in the same batch. It says
//
//   - who owns the partition: whoever wrote the last page (headerOwner);
//   - the floor: up to which sequence of the stream everything has ended (headerFloor);
//   - for which event types that holds, and for other types up to which sequence
//     they were handled before (headerTypes);
//   - which events have ended: their keys, 20 bytes each, in the body;
//   - which events are starting, where that has to be known after a crash: as many
//     keys as headerStarts says, at the end of the body.
//
// Each page expects the one before it to be the last on its subject. So whoever
// takes a partition over writes a page without keys, a fence, and from then on the
// server refuses every batch of the owner before.

// pageKind is what a page is, besides the keys that it holds.
type pageKind string

const (
	// pageFence begins an ownership.
	pageFence pageKind = "fence"
	// pageCommit ends or starts events.
	pageCommit pageKind = "page"
	// pageFarewell ends an ownership: nothing runs any more.
	pageFarewell pageKind = "farewell"
)

const (
	headerPage   = "Farandole-Page"   // the kind
	headerOwner  = "Farandole-Owner"  // the member that wrote it, as in "4hq2xkz7ma"
	headerSerial = "Farandole-Serial" // tells the pages of an owner apart, as in "17"
	headerFloor  = "Farandole-Floor"  // a sequence of the stream, as in "48213"
	headerTypes  = "Farandole-Types"  // as in "order.placed.v1 order.cancelled.v1@48213"
	headerStarts = "Farandole-Starts" // how many keys are of events that start; absent for none
	headerWindow = "Farandole-Window" // how many events the owner has under way at most
	// pageSuffix ends the subject of a page.
	pageSuffix = ".page"
)

// page is a decoded page.
type page struct {
	kind   pageKind
	owner  string
	serial uint64
	floor  uint64
	window int
	types  typeFloors
	ended  []event.BinaryKey
	starts []event.BinaryKey
}

// message is the page as it is stored after the page with the sequence last.
func (p page) message(subject string, last uint64) *nats.Msg {
	m := &nats.Msg{Subject: subject, Header: nats.Header{
		headerPage:                          {string(p.kind)},
		headerOwner:                         {p.owner},
		headerSerial:                        {strconv.FormatUint(p.serial, 10)},
		headerFloor:                         {strconv.FormatUint(p.floor, 10)},
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(last, 10)},
		jetstream.MsgTTLHeader:              {"never"}, // the owner removes old ones: the last one counts for ever
	}}
	if len(p.types) > 0 {
		m.Header[headerTypes] = []string{p.types.String()}
	}
	if len(p.starts) > 0 {
		m.Header[headerStarts] = []string{strconv.Itoa(len(p.starts))}
	}
	if p.window > 0 {
		m.Header[headerWindow] = []string{strconv.Itoa(p.window)}
	}
	m.Data = make([]byte, 0, (len(p.ended)+len(p.starts))*len(event.BinaryKey{}))
	for _, keys := range [][]event.BinaryKey{p.ended, p.starts} {
		for _, k := range keys {
			m.Data = append(m.Data, k[:]...)
		}
	}
	return m
}

// pageOf reads a page. The error matches [ErrBadMark].
func pageOf(m *jetstream.RawStreamMsg) (p page, err error) {
	bad := func(what string) (page, error) {
		return page{}, fmt.Errorf("%w: page %s at sequence %d: %s", ErrBadMark, m.Subject, m.Sequence, what)
	}
	p.kind, p.owner = pageKind(m.Header.Get(headerPage)), m.Header.Get(headerOwner)
	switch p.kind {
	case pageFence, pageCommit, pageFarewell:
	default:
		return bad(fmt.Sprintf("%s is %q", headerPage, p.kind))
	}
	if p.serial, err = strconv.ParseUint(m.Header.Get(headerSerial), 10, 64); err != nil {
		return bad("no " + headerSerial)
	}
	if p.floor, err = strconv.ParseUint(m.Header.Get(headerFloor), 10, 64); err != nil {
		return bad("no " + headerFloor)
	}
	if p.types, err = typeFloorsOf(m.Header.Get(headerTypes)); err != nil {
		return bad(err.Error())
	}
	starts := 0
	for name, n := range map[string]*int{headerStarts: &starts, headerWindow: &p.window} {
		if v := m.Header.Get(name); v != "" {
			if *n, err = strconv.Atoi(v); err != nil {
				return bad(fmt.Sprintf("%s is %q", name, v))
			}
		}
	}
	const size = len(event.BinaryKey{})
	keys := make([]event.BinaryKey, 0, len(m.Data)/size)
	for i := 0; i+size <= len(m.Data); i += size {
		keys = append(keys, event.BinaryKey(m.Data[i:i+size]))
	}
	if len(m.Data)%size != 0 || starts < 0 || starts > len(keys) {
		return bad(fmt.Sprintf("%d bytes, %d starts", len(m.Data), starts))
	}
	p.ended, p.starts = keys[:len(keys)-starts], keys[len(keys)-starts:]
	return p, nil
}
