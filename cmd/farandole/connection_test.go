package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/farandole/farandole/bustest"
)

func TestContext_that_the_nats_CLI_has_selected_is_used(t *testing.T) {
	b := bustest.NewBus(t)
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv("NATS_URL", "")
	t.Setenv("NATS_CONTEXT", "")
	must(t, os.MkdirAll(filepath.Join(dir, "nats", "context"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "nats", "context", "here.json"), []byte(`{"url":"`+bustest.Server(t).URL()+`"}`), 0o600))
	selection := filepath.Join(dir, "nats", "context.txt")
	must(t, os.WriteFile(selection, []byte("here\n"), 0o600))
	plan := []string{"topology", "plan", "--prefix", b.Names().Prefix}
	if got := farandole(t, "", plan...); got.code != exitDone {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
	// Who names a server or another context means that one.
	const nowhere = "nats://127.0.0.1:1"
	if got := farandole(t, "", append(plan, "--server", nowhere, "--wait", "1ms")...); got.code != exitFailed || !strings.Contains(got.err, nowhere) {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
	if got := farandole(t, "", append(plan, "--context", "there", "--wait", "1ms")...); got.code != exitFailed || !strings.Contains(got.err, "there") {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
	must(t, os.WriteFile(selection, []byte("gone"), 0o600))
	if got := farandole(t, "", append(plan, "--wait", "1ms")...); got.code != exitFailed || !strings.Contains(got.err, `unknown context "gone"`) {
		t.Errorf("exit %d, stderr %q", got.code, got.err)
	}
}

func TestVersion_can_be_a_flag(t *testing.T) {
	t.Parallel()
	flag, command := farandole(t, "", "--version"), farandole(t, "", "version")
	if flag != command || flag.code != exitDone || !strings.HasPrefix(flag.out, "farandole ") {
		t.Errorf("%+v, %+v", flag, command)
	}
}
