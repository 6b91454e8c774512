package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/internal/terminal"
	"github.com/farandole/farandole/outbox"
)

// dlqEdit is what a command line changes in the event of a letter.
type dlqEdit struct {
	Data      string            `short:"d" placeholder:"DATA|@FILE|-" help:"New data, byte for byte: as given, from a file, or from stdin. Id, source, type, key and correlation stay."`
	SetHeader map[string]string `mapsep:"none" placeholder:"NAME=VALUE" help:"Set a header of the event, as in ce-priority=high; an empty value removes it. Repeat the flag for more."`
}

func (e dlqEdit) given() bool { return e.Data != "" || len(e.SetHeader) > 0 }

// read makes the change; the data of a file are read here.
func (e dlqEdit) read(a *app) (dlq.Edit, error) {
	edit := dlq.Edit{Headers: e.SetHeader, By: operator()}
	if e.Data == "" {
		return edit, nil
	}
	var err error
	edit.Data, err = a.dataOf("dlq", e.Data)
	return edit, err
}

type dlqEditCmd struct {
	jsonFlag
	ID string `arg:"" help:"As dlq list shows it."`
	dlqEdit
	Replay bool `help:"Replay it then."`
}

// Run edits the event of one letter.
func (c *dlqEditCmd) Run(ctx context.Context, a *app) error {
	return a.withQueue(ctx, func(q *dlq.Queue, _ *outbox.Outbox) error {
		edit, err := c.read(a)
		if err != nil {
			return err
		}
		if !c.given() {
			if edit.Data, err = editData(ctx, a, q, c.ID); err != nil {
				return err
			}
		}
		change, err := saveEdit(ctx, a, q, c.ID, edit)
		if err != nil || change.What == "" && !c.Replay {
			return err
		}
		if c.JSON {
			err = a.printJSON(struct {
				ID string `json:"id"`
				dlq.Change
			}{c.ID, change})
		}
		if err != nil || !c.Replay && !a.agreed("replay it now") {
			return err
		}
		r := results{app: a, json: c.JSON, named: true, progress: newProgress(a, "replay")}
		sum, err := q.Replay(ctx, dlq.Selection{IDs: []string{c.ID}}, dlq.ReplayOptions{By: operator()}, r.add)
		return r.finish("replay", sum, err)
	})
}

// saveEdit changes a letter, and shows what is different.
func saveEdit(ctx context.Context, a *app, q *dlq.Queue, id string, edit dlq.Edit) (dlq.Change, error) {
	change, err := q.Edit(ctx, id, edit)
	switch {
	case err != nil:
		return dlq.Change{}, err
	case change.What == "":
		a.say("%s: nothing changed", terminal.Printable(id))
	default:
		a.say("%s: saved", terminal.Printable(id))
		for line := range strings.Lines(change.Diff) {
			a.say("  %s", terminal.Printable(strings.TrimSuffix(line, "\n")))
		}
	}
	return change, nil
}

// editData has a person edit the data of a letter.
func editData(ctx context.Context, a *app, q *dlq.Queue, id string) (data []byte, err error) {
	editor := os.Getenv("VISUAL")
	if editor == "" {
		editor = os.Getenv("EDITOR")
	}
	if editor == "" {
		return nil, usageErrorf("dlq edit: neither VISUAL nor EDITOR names an editor; --data @FILE takes the data from a file")
	}
	found, err := q.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if found.Letter == nil {
		return nil, fmt.Errorf("dlq edit: %s has no letter: %s", id, found.Verdict)
	}
	dir, err := os.MkdirTemp("", "farandole-edit-")
	if err != nil {
		return nil, fmt.Errorf("dlq edit: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "data")
	if json.Valid(found.Letter.Data) { // editors know by the name what it is
		file += ".json"
	}
	if err := os.WriteFile(file, found.Letter.Data, 0o600); err != nil {
		return nil, fmt.Errorf("dlq edit: %w", err)
	}
	// As git does it: the variable may hold arguments.
	cmd := exec.CommandContext(ctx, "sh", "-c", editor+` "$@"`, editor, file) //nolint:gosec // the user's own editor
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, a.err, a.err
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("dlq edit: %s: %w; nothing is changed", editor, err)
	}
	edited, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("dlq edit: %w", err)
	}
	if !bytes.HasSuffix(found.Letter.Data, []byte("\n")) { // editors add one
		edited = bytes.TrimSuffix(edited, []byte("\n"))
	}
	return edited, nil
}

type dlqImportCmd struct {
	jsonFlag
	File string `arg:"" help:"What dlq export has written; - for stdin."`
}

// Run stores exported letters.
func (c *dlqImportCmd) Run(ctx context.Context, a *app) (err error) {
	in := os.Stdin
	if c.File != "-" {
		if in, err = os.Open(c.File); err != nil {
			return fmt.Errorf("dlq import: %w", err)
		}
		defer func() { err = errors.Join(err, in.Close()) }()
	}
	r := results{app: a, json: c.JSON}
	return r.run(ctx, "import", "imported", func(q *dlq.Queue) (dlq.Summary, error) {
		return q.Import(ctx, in, operator(), r.add)
	})
}
