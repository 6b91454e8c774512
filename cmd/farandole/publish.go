package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/terminal"
)

type publishCmd struct {
	jsonFlag
	Type string `arg:"" help:"Event type, <domain>.<event>.v<N>."`
	Key  string `arg:"" help:"What the event is about, as in ord-1: events of one key are handled in order."`

	Data        string            `short:"d" placeholder:"DATA|@FILE|-" help:"Data, sent byte for byte: as given, from a file, or from stdin."`
	ContentType string            `default:"application/json" help:"datacontenttype of the data."`
	ID          string            `xor:"id" help:"Event id. Default: a random one."`
	ContentID   bool              `xor:"id" help:"Make the id from type, key and data, so that the same event published twice is one."`
	Source      string            `default:"/farandole/cli" help:"CloudEvents source; source and id are the event's identity."`
	Subject     string            `help:"CloudEvents subject attribute."`
	Correlation string            `help:"The saga. Default: the key."`
	Ext         map[string]string `placeholder:"NAME=VALUE" mapsep:"none" help:"Extension attribute; repeat the flag for more."`
}

// published is the JSON that publish prints.
type published struct {
	Stream    string         `json:"stream"`
	Sequence  uint64         `json:"sequence"`
	Duplicate bool           `json:"duplicate"`
	EventKey  event.EventKey `json:"event_key"`
	ID        string         `json:"id"`
	Source    string         `json:"source"`
	Type      string         `json:"type"`
	Key       event.Key      `json:"key"`
}

// Run publishes the event and prints where it is stored.
func (c *publishCmd) Run(ctx context.Context, a *app) error {
	draft, err := c.draft(a)
	if err != nil {
		return err
	}
	cfg := a.root.Connection.config("publish", a.log("warn"))
	cfg.Source = c.Source
	return withConfig(ctx, cfg, func(b *bus.Bus) error {
		e, err := b.Seal(draft)
		if err != nil {
			return err
		}
		receipt, err := b.Publish(ctx, e)
		if err != nil {
			return err
		}
		return c.print(a, published{
			Stream: receipt.Stream, Sequence: receipt.Sequence, Duplicate: receipt.Duplicate,
			EventKey: event.EventKeyOf(e), ID: e.ID(), Source: e.Source(), Type: e.Type(), Key: event.PartitionKey(e),
		})
	})
}

func (c *publishCmd) print(a *app, p published) error {
	if c.JSON {
		return a.printJSON(p)
	}
	outcome := "stored"
	if p.Duplicate {
		outcome = "duplicate of what is stored"
	}
	return a.printf("%s: %s %d, id %s, event key %s", outcome, terminal.Printable(p.Stream), p.Sequence, terminal.Printable(p.ID), p.EventKey)
}

// draft makes the event from the flags.
func (c *publishCmd) draft(a *app) (event.Draft, error) {
	data, err := c.data(a)
	if err != nil {
		return event.Draft{}, err
	}
	draft := event.Draft{
		Type: event.Type(c.Type), Key: event.Key(c.Key), ID: c.ID, Subject: c.Subject,
		Correlation: c.Correlation, Data: data, Extensions: c.Ext,
	}
	if len(data) > 0 {
		draft.ContentType = c.ContentType
		if c.ContentType == event.ContentTypeJSON && !json.Valid(data) {
			return event.Draft{}, usageErrorf("publish: the data is not JSON; --content-type names what it is")
		}
	}
	if c.ContentID {
		if draft.ID, err = contentID(draft); err != nil {
			return event.Draft{}, err
		}
	}
	return draft, nil
}

// contentID makes an id from type, key and data. The same data under another type or
// key is another event.
func contentID(d event.Draft) (string, error) {
	data := json.RawMessage(d.Data)
	if d.ContentType != event.ContentTypeJSON {
		text, err := json.Marshal(d.Data)
		if err != nil {
			return "", fmt.Errorf("publish: %w", err)
		}
		data = text
	}
	return event.ContentID(struct {
		Type event.Type      `json:"type"`
		Key  event.Key       `json:"key"`
		Data json.RawMessage `json:"data"`
	}{d.Type, d.Key, data})
}

// data reads the event's data, from where --data says.
func (c *publishCmd) data(a *app) ([]byte, error) { return a.dataOf("publish", c.Data) }

// dataOf reads data as a flag of this command says: as given, @FILE, or - for stdin.
func (a *app) dataOf(command, flag string) ([]byte, error) {
	switch {
	case flag == "-":
		data, err := io.ReadAll(a.in)
		if err != nil {
			return nil, fmt.Errorf("%s: read stdin: %w", command, err)
		}
		return data, nil
	case strings.HasPrefix(flag, "@"):
		data, err := os.ReadFile(flag[1:])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", command, err)
		}
		return data, nil
	default:
		return []byte(flag), nil
	}
}
