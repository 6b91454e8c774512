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
	widths []int
	begun  bool // the header is written
}

// NewTable returns a table with these column names. A name that begins with
// ">" (which is not shown) aligns its column to the right. A header of empty
// names is not written.
func NewTable(columns ...string) *Table {
	t := &Table{right: map[int]bool{}, widths: make([]int, len(columns))}
	for i, name := range columns {
		name, t.right[i] = strings.CutPrefix(name, ">")
		t.header = append(t.header, name)
		t.widths[i] = lipgloss.Width(name)
	}
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

func (t *Table) line(sb *strings.Builder, cells []string, style func(string) string) {
	for i, cell := range cells {
		pad := strings.Repeat(" ", t.widths[i]-lipgloss.Width(cell))
		switch {
		case t.right[i]:
			sb.WriteString(pad + style(cell))
		case i == len(cells)-1: // no blanks at the end of a line
			sb.WriteString(style(cell))
		default:
			sb.WriteString(style(cell) + pad)
		}
		if i < len(cells)-1 {
			sb.WriteString("  ")
		}
	}
	sb.WriteByte('\n')
}
