package terminal

import (
	"io"
	"strings"

	"charm.land/lipgloss/v2"
)

// Table is rows under a header, in columns as wide as their widest cell. Cells
// are printed as they are: bytes from messages go through [Cell] first.
type Table struct {
	header []string
	rows   [][]string
	right  map[int]bool
	yields map[int]bool
	widths []int
	most   int  // columns of the terminal; 0 for any number
	begun  bool // the header is written
}

// NewTable returns a table with these column names. A name that begins with
// ">" (which is not shown) aligns its column to the right. The column of one that
// begins with "~" gives way where the terminal is too narrow ([Table.Fit]). A header
// of empty names is not written.
func NewTable(columns ...string) *Table {
	t := &Table{right: map[int]bool{}, yields: map[int]bool{}, widths: make([]int, len(columns))}
	for i, name := range columns {
		name, t.right[i] = strings.CutPrefix(name, ">")
		name, t.yields[i] = strings.CutPrefix(name, "~")
		t.header = append(t.header, name)
		t.widths[i] = lipgloss.Width(name)
	}
	return t
}

// Fit has lines take at most so many columns: cells of the columns that give way are
// cut, those of the widest column first. 0 is no limit.
func (t *Table) Fit(columns int) *Table {
	t.most = columns
	return t
}

// Row adds one row, with a cell for every column.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// WriteTo writes the table and forgets its rows, so that a long list can be
// written in parts: the header is written once, and columns never get narrower.
func (t *Table) WriteTo(w io.Writer) (int64, error) {
	for _, row := range t.rows {
		for i, cell := range row {
			t.widths[i] = max(t.widths[i], lipgloss.Width(cell))
		}
	}
	t.fit()
	var sb strings.Builder
	if !t.begun && strings.Join(t.header, "") != "" {
		bold := lipgloss.NewStyle().Bold(true)
		t.line(&sb, t.header, func(s string) string { return bold.Render(s) })
	}
	for _, row := range t.rows {
		t.line(&sb, row, func(s string) string { return s })
	}
	t.rows, t.begun = nil, true
	n, err := io.WriteString(w, sb.String())
	return int64(n), err
}

// least is how narrow a column gets that gives way.
const least = 8

// fit takes from the columns that give way what is too much.
func (t *Table) fit() {
	over := 2*(len(t.widths)-1) - t.most
	for _, w := range t.widths {
		over += w
	}
	for ; t.most > 0 && over > 0; over-- {
		widest := -1
		for i := range t.widths {
			if t.yields[i] && t.widths[i] > least && (widest < 0 || t.widths[i] > t.widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		t.widths[widest]--
	}
}

func (t *Table) line(sb *strings.Builder, cells []string, style func(string) string) {
	blanks := 0 // that come before the next cell that is not empty: none at the end of a line
	for i, cell := range cells {
		cell = Cut(cell, t.widths[i])
		pad := t.widths[i] - lipgloss.Width(cell)
		if t.right[i] {
			blanks, pad = blanks+pad, 0
		}
		if cell != "" {
			sb.WriteString(strings.Repeat(" ", blanks) + style(cell))
			blanks = 0
		}
		blanks += pad + 2
	}
	sb.WriteByte('\n')
}

// Cut is s in at most so many columns, with an ellipsis if something is missing. 0 is no
// limit.
func Cut(s string, columns int) string {
	if columns == 0 || lipgloss.Width(s) <= columns {
		return s
	}
	runes := []rune(s)
	for len(runes) > 0 && lipgloss.Width(string(runes))+1 > columns {
		runes = runes[:len(runes)-1]
	}
	return string(runes) + "…"
}
