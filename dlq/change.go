package dlq

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
)

// Change is what a person has done to a letter, as its story tells.
type Change struct {
	At time.Time `json:"at"`
	By string    `json:"by,omitempty"`
	// What was done, as in "edited", "moved from payment", "imported".
	What string `json:"what"`
	// Diff has the lines of data and headers that are different: "-" and "+" begin what was
	// there and what is. Of JSON it is indented. It is cut at 4 KiB.
	Diff string `json:"diff,omitempty"`
}

const (
	maxDiff = 4 << 10
	// maxChanges bounds how many changes a letter tells of: the latest ones.
	maxChanges = 10
)

// changesOf reads the changes that a letter or a redrive tells of.
func changesOf(h nats.Header) []Change {
	var changes []Change
	if json.Unmarshal([]byte(first(h, headerChanges)), &changes) != nil {
		return nil
	}
	return changes
}

// putChanges adds changes; the differences of older ones make room for the latest.
func (p *packer) putChanges(changes []Change) {
	if len(changes) == 0 {
		return
	}
	changes = append([]Change(nil), changes[max(0, len(changes)-maxChanges):]...)
	limit := min(maxHistoryBytes, p.room-len(headerChanges)-4)
	doc := asciiJSON(changes)
	for i := 0; len(doc) > limit && i < len(changes); i++ {
		p.cut = true
		changes[i].Diff = ""
		doc = asciiJSON(changes)
	}
	p.put(headerChanges, doc)
}

// difference tells two versions of headers and data apart.
func difference(oldHeader, newHeader nats.Header, oldData, newData []byte) string {
	var sb strings.Builder
	names := map[string]bool{}
	for name := range oldHeader {
		names[name] = true
	}
	for name := range newHeader {
		names[name] = true
	}
	for _, name := range sortedKeys(names) {
		was, is := strings.Join(oldHeader[name], ", "), strings.Join(newHeader[name], ", ")
		if was == is {
			continue
		}
		if len(oldHeader[name]) > 0 {
			sb.WriteString("- " + name + ": " + was + "\n")
		}
		if len(newHeader[name]) > 0 {
			sb.WriteString("+ " + name + ": " + is + "\n")
		}
	}
	sb.WriteString(dataDifference(oldData, newData))
	return cut(sb.String(), maxDiff)
}

// dataDifference leaves out the lines that both begin and end with.
func dataDifference(oldData, newData []byte) string {
	if bytes.Equal(oldData, newData) {
		return ""
	}
	if !utf8.Valid(oldData) || !utf8.Valid(newData) {
		return "the data is binary, and different\n"
	}
	was, is := linesOf(oldData), linesOf(newData)
	for len(was) > 0 && len(is) > 0 && was[0] == is[0] {
		was, is = was[1:], is[1:]
	}
	for len(was) > 0 && len(is) > 0 && was[len(was)-1] == is[len(is)-1] {
		was, is = was[:len(was)-1], is[:len(is)-1]
	}
	if len(was)+len(is) == 0 {
		return "the data is the same but for white space\n"
	}
	var sb strings.Builder
	for _, line := range was {
		sb.WriteString("- " + line + "\n")
	}
	for _, line := range is {
		sb.WriteString("+ " + line + "\n")
	}
	return sb.String()
}

func linesOf(data []byte) []string {
	var indented bytes.Buffer
	if json.Indent(&indented, data, "", "  ") == nil {
		data = indented.Bytes()
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}
