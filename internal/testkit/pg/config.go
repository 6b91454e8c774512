package pg

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Config says how a server is run.
type Config struct {
	// Durable makes each commit wait for the disk, as an operator's server
	// does. Without it a commit survives the death of the server's processes,
	// but not of the machine. Defaults to false.
	Durable bool
	// Settings are more server settings, as in postgresql.conf; they replace
	// the package's own. Defaults to none.
	Settings map[string]string
}

// text is what is added to postgresql.conf.
func (c Config) text(port int) string {
	durable := "off"
	if c.Durable {
		durable = "on"
	}
	settings := map[string]string{
		"listen_addresses":        host,
		"port":                    strconv.Itoa(port),
		"unix_socket_directories": "", // their paths may be too long
		"fsync":                   durable,
		"full_page_writes":        durable,
		"wal_level":               "logical",
		"max_replication_slots":   "32",
		"max_wal_senders":         "32",
		"max_connections":         "300",
	}
	maps.Copy(settings, c.Settings)
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	return b.String()
}
