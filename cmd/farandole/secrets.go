package main

import (
	"bytes"
	"fmt"
	"os"
)

// secrets are the environment variables that may hold a password. Each can be given
// as a file instead, by the variable with _FILE behind its name: as containers get
// their secrets. PGPASSWORD is read by the driver.
var secrets = []string{"NATS_PASSWORD", "NATS_TOKEN", "DATABASE_URL", "PGPASSWORD", "FARANDOLE_WEBHOOK_SECRET"}

// readSecrets sets those variables that are given as files. A line end at the end of
// the file is not part of the secret.
func readSecrets() error {
	for _, name := range secrets {
		file := name + "_FILE"
		path := os.Getenv(file)
		if path == "" {
			continue
		}
		if os.Getenv(name) != "" {
			return fmt.Errorf("%s and %s are both set: unset one", name, file)
		}
		value, err := os.ReadFile(path) //nolint:gosec // whoever starts the program names it
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := os.Setenv(name, string(bytes.TrimRight(value, "\r\n"))); err != nil {
			return fmt.Errorf("%s: %s: %w", file, path, err)
		}
	}
	return nil
}
