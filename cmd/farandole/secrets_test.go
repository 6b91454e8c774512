package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSecrets_can_be_files(t *testing.T) {
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "secret")
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for _, name := range secrets {
		t.Setenv(name, "")
		t.Setenv(name+"_FILE", "")
	}
	t.Setenv("NATS_PASSWORD_FILE", file("p w\n"))
	t.Setenv("PGPASSWORD_FILE", file("x"))
	t.Setenv("NATS_TOKEN", "given")
	must(t, readSecrets())
	for name, want := range map[string]string{"NATS_PASSWORD": "p w", "PGPASSWORD": "x", "NATS_TOKEN": "given", "DATABASE_URL": ""} {
		if got := os.Getenv(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for _, name := range secrets {
		t.Setenv(name+"_FILE", "")
	}
	must(t, readSecrets())
	t.Setenv("NATS_TOKEN_FILE", file("t"))
	if err := readSecrets(); err == nil || !strings.Contains(err.Error(), "NATS_TOKEN and NATS_TOKEN_FILE are both set") {
		t.Errorf("%v", err)
	}
	t.Setenv("NATS_TOKEN_FILE", "")
	t.Setenv("DATABASE_URL_FILE", "/no/such/file")
	if err := readSecrets(); err == nil || !strings.Contains(err.Error(), "DATABASE_URL_FILE: open /no/such/file") {
		t.Errorf("%v", err)
	}
}
