package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/farandole/farandole/bustest"
)

// The commands that README.md shows for its first service make it react, show what
// cannot be handled, and mend it.
func TestReadmeLeadsThroughTheFirstTenMinutes(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var shown []byte
	for _, block := range regexp.MustCompile("(?s)<!-- run -->\n```\n(.*?)```").FindAllSubmatch(readme, -1) {
		shown = append(shown, block[1]...)
	}
	server := bustest.StartServer(t, bustest.ServerConfig{})
	if r := run(t, "--server", server.URL(), "topology", "apply"); r.code != 0 {
		t.Fatal(r.stderr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dir := t.TempDir()
	service, err := build(ctx, dir, "../examples/coupons")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binary, filepath.Join(dir, "farandole")); err != nil {
		t.Fatal(err)
	}
	coupons := exec.CommandContext(ctx, service)
	commands := exec.CommandContext(ctx, "bash", "-ec", string(shown))
	coupons.Env = append(environment(), "NATS_URL="+server.URL())
	commands.Env = append(environment(), "NATS_URL="+server.URL(), "PATH="+dir+":"+os.Getenv("PATH"))
	if err := coupons.Start(); err != nil {
		t.Fatal(err)
	}
	out, err := commands.CombinedOutput()
	if err := coupons.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if err := coupons.Wait(); err != nil {
		t.Errorf("the service: %v", err)
	}
	for _, want := range []string{"10 % off for Ada", "10 % off for Bob", "/name is an array, want a string"} {
		if !strings.Contains(string(out), want) {
			err = errors.Join(err, fmt.Errorf("no %q", want))
		}
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
