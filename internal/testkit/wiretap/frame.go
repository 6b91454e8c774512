package wiretap

import (
	"bytes"
	"strconv"
)

// frameLength is the length of the frame that b begins with, 0 while it is not complete.
func frameLength(b []byte) int {
	end := bytes.Index(b, []byte("\r\n"))
	if end < 0 {
		return 0
	}
	line := b[:end]
	end += len("\r\n")
	op, _, _ := bytes.Cut(line, []byte(" "))
	switch string(op) {
	case "PUB", "HPUB", "MSG", "HMSG": // they end in the size of their payload
		size, err := strconv.Atoi(string(line[bytes.LastIndexByte(line, ' ')+1:]))
		if err == nil {
			end += size + len("\r\n")
		}
	}
	if end > len(b) {
		return 0
	}
	return end
}

// Subject is where a frame is published or delivered, empty for all others.
func Subject(frame []byte) string {
	line, _, _ := bytes.Cut(frame, []byte("\r\n"))
	fields := bytes.Fields(line)
	if len(fields) < 2 {
		return ""
	}
	switch string(fields[0]) {
	case "PUB", "HPUB", "MSG", "HMSG":
		return string(fields[1])
	}
	return ""
}
