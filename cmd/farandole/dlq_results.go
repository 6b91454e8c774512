package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/farandole/farandole/dlq"
	"github.com/farandole/farandole/internal/terminal"
	"github.com/farandole/farandole/outbox"
)

// results prints what becomes of each letter as it happens.
type results struct {
	app  *app
	json bool
	// named says that the letters were named one by one, so that each has an answer.
	named bool
	// to is the consumer that gets the letters, "" for the one that failed.
	to string
	// waits says that a letter is reported again when its replay has ended.
	waits    bool
	progress *progress
	sent     int            // letters that are waited for
	done     int            // letters that have come to an end
	gone     map[string]int // letters not replayed, by the consumer that is missing
	err      error          // of writing; the walk goes on: what was begun is finished
}

// run changes letters, and prints what became of them.
func (r *results) run(ctx context.Context, verb, done string, change func(*dlq.Queue) (dlq.Summary, error)) error {
	r.progress = newProgress(r.app, verb)
	var sum dlq.Summary
	err := r.app.withQueue(ctx, func(q *dlq.Queue, _ *outbox.Outbox) (err error) {
		sum, err = change(q)
		return err
	})
	r.progress.close()
	if late := errTimeout(0); err != nil && errors.As(context.Cause(ctx), &late) {
		err = late // whatever was being asked, that is why there is no answer
	}
	return r.finish(verb, sum, r.app.rowsOnly(err, done))
}

// add prints a result: as JSON every one, for people those that need a look.
func (r *results) add(res dlq.Result) {
	sent := r.waits && (res.Status == dlq.Replayed || res.Status == dlq.Pending || res.Status == dlq.InProgress)
	if sent {
		r.sent++
	} else {
		r.done++
	}
	if res.Status == dlq.NoConsumer {
		if r.gone == nil {
			r.gone = map[string]int{}
		}
		r.gone[cmp.Or(r.to, res.ID[:strings.LastIndexByte(res.ID, '.')])]++
	}
	if err := r.print(res, sent); r.err == nil {
		r.err = err
	}
	note := fmt.Sprintf("%s of %s", terminal.Number(r.done), terminal.Number(res.Selected))
	if !r.waits {
		r.progress.set(r.done, res.Selected, note)
		return
	}
	// Half of the way is to send it.
	r.progress.set(max(r.sent, r.done)+r.done, 2*res.Selected, fmt.Sprintf("%s sent, %s ended", terminal.Number(r.sent), note))
}

func (r *results) print(res dlq.Result, goesOn bool) error {
	id, words := terminal.Printable(res.ID), res.Status.Words()
	switch {
	case r.json:
		return r.app.printJSON(res)
	case res.Ends: // the error is printed in the end
		return nil
	case res.Status == dlq.NoConsumer, res.Status == dlq.FailedAgain: // the reason is in the summary, or in the letter
		return r.progress.printf("%s  %s", id, words)
	case res.Message != "":
		why := strings.TrimPrefix(res.Message, "dlq: "+words+": ") // it was said, as the id was
		why = strings.TrimPrefix(strings.TrimPrefix(why, res.ID), ": ")
		line := strings.TrimSuffix(fmt.Sprintf("%s  %s: %s", id, words, terminal.Printable(why)), ": ")
		if r.app.columns > 0 && len(line) > r.app.columns {
			line = r.app.wrap(line, 2)
		}
		return r.progress.printf("%s", line)
	case r.named && !goesOn && res.Status != dlq.Replayed && res.Status != dlq.Discarded && res.Status != dlq.Pending:
		return r.progress.printf("%s  %s", id, words)
	}
	return nil
}

// finish prints the counts. The exit code is 1 if letters were refused, missing, failed
// or have no consumer; 3 if events that were waited for have failed again, 4 if some have
// not ended.
func (r *results) finish(verb string, sum dlq.Summary, err error) error {
	if sum.Counts[dlq.Pending] > 0 {
		r.app.say("a relay publishes the pending rows")
	}
	if sum.Selected > 0 || err == nil { // a question that was answered by no selects nothing
		r.app.say("%s", r.app.wrap(verb+": "+counts(sum), 2))
	}
	for _, consumer := range slices.Sorted(maps.Keys(r.gone)) {
		r.app.say("%s", r.app.wrap(fmt.Sprintf("%s not replayed: no consumer %s exists; start it, or --force stores the redrive for whoever comes",
			terminal.Number(r.gone[consumer]), terminal.Printable(consumer)), 2))
	}
	if sum.Counts[dlq.FailedAgain] > 0 {
		r.app.say("\"farandole dlq show ID\" says why one has failed again")
	}
	var late errTimeout
	switch {
	case errors.Is(err, dlq.ErrFailedAgain):
		return exitError{err, exitFailedAgain}
	case errors.Is(err, dlq.ErrNobody), errors.As(err, &late):
		return exitError{err, exitWaiting}
	case err != nil:
		return err
	case r.err != nil:
		return r.err
	case sum.Counts[dlq.Failed]+sum.Counts[dlq.Refused]+sum.Counts[dlq.NotFound]+sum.Counts[dlq.NoConsumer] > 0:
		return errSilent
	case sum.Counts[dlq.FailedAgain] > 0:
		return exitError{errSilent, exitFailedAgain}
	default:
		return nil
	}
}

// counts is "12 selected: 10 replayed, 2 refused".
func counts(sum dlq.Summary) string {
	var parts []string
	for status, n := range sum.Counts {
		parts = append(parts, terminal.Number(n)+" "+status.Words())
	}
	slices.Sort(parts)
	text := terminal.Number(sum.Selected) + " selected"
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	if left := sum.Selected - sum.Reached(); left > 0 {
		text += fmt.Sprintf("; %s not reached, run it again to go on", terminal.Number(left))
	}
	return text
}
