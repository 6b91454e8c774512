package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/internal/testkit/require"
)

// servers are the services that stay up.
var servers = []string{"nats", "postgres", "gateway", "payment", "inventory", "order"}

// deployment is docker-compose.yml, running under a name and ports of its own.
type deployment struct {
	shop
	payment string // URL of its fault switch
	t       *testing.T
	command []string // the Compose tool with the project's name
	env     []string
}

// newDeployment builds and starts docker-compose.yml; the end of the test
// removes its containers, volumes and image.
func newDeployment(t *testing.T) *deployment {
	t.Helper()
	needDocker(t)
	project := fmt.Sprintf("farandole-e2e-%d", os.Getpid())
	image := "farandole:e2e-" + fmt.Sprint(os.Getpid())
	port, paymentPort := freePort(t), freePort(t)
	d := &deployment{
		shop:    shop{url: localURL(port)},
		payment: localURL(paymentPort),
		t:       t,
		env: append(environment(), "FARANDOLE_IMAGE="+image, fmt.Sprintf("ORDER_PORT=%d", port),
			fmt.Sprintf("PAYMENT_PORT=%d", paymentPort)),
	}
	// The plugin where it is, else the older program.
	d.command = []string{"docker", "compose"}
	if exec.CommandContext(t.Context(), "docker", "compose", "version").Run() != nil {
		d.command = []string{"docker-compose"}
	}
	d.command = append(d.command, "--file", "../docker-compose.yml", "--project-name", project)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*patience)
		defer cancel()
		if t.Failed() {
			logs, err := d.try(ctx, "logs", "--no-color", "--tail=100")
			t.Logf("logs (%v):\n%s", err, logs)
		}
		if _, err := d.try(ctx, "down", "--volumes", "--remove-orphans", "--timeout", "5"); err != nil {
			t.Error(err)
		}
		if out, err := exec.CommandContext(ctx, "docker", "rmi", "--force", image).CombinedOutput(); err != nil {
			t.Errorf("remove image: %v: %s", err, out)
		}
	})
	d.compose("build", "topology") // one image for all
	d.compose("up", "--detach")
	d.awaitHealthy(servers...)
	return d
}

// try runs the Compose tool and returns its stdout.
func (d *deployment) try(ctx context.Context, args ...string) (string, error) {
	args = append(d.command[1:len(d.command):len(d.command)], args...)
	cmd := exec.CommandContext(ctx, d.command[0], args...)
	cmd.Env = d.env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s%s", d.command[0], strings.Join(args, " "), err,
			tail(stdout.String(), 2000), tail(stderr.String(), 2000))
	}
	return stdout.String(), nil
}

// compose is try that must work, within the time that a build takes.
func (d *deployment) compose(args ...string) string {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 15*time.Minute)
	defer cancel()
	out, err := d.try(ctx, args...)
	if err != nil {
		d.t.Fatal(err)
	}
	return out
}

// cli runs a command in the cli container and returns its stdout.
func (d *deployment) cli(args ...string) string {
	d.t.Helper()
	return d.compose(append([]string{"run", "--rm", "-T", "cli"}, args...)...)
}

// inside runs a command in the nats container, which has a shell.
func (d *deployment) inside(script string) string {
	d.t.Helper()
	return d.compose("exec", "-T", "nats", "sh", "-c", script)
}

// query asks order's database.
func (d *deployment) query(sql string) string {
	d.t.Helper()
	return strings.TrimSpace(d.compose("exec", "-T", "postgres", "psql", "-U", "farandole", "-v", "ON_ERROR_STOP=1", "-tAc", sql))
}

// container returns the id of a service's container.
func (d *deployment) container(service string) string {
	d.t.Helper()
	return strings.TrimSpace(d.compose("ps", "--quiet", service))
}

// awaitHealthy waits until Docker says that the services are healthy.
func (d *deployment) awaitHealthy(services ...string) {
	d.t.Helper()
	for _, service := range services {
		id := d.container(service)
		bustest.Eventually(d.t, 2*patience, func() error {
			out, err := docker(d.t.Context(), "inspect", "--format", "{{.State.Health.Status}}", id)
			if err == nil && out != "healthy" {
				err = fmt.Errorf("%s is %s", service, out)
			}
			return err
		})
	}
}

func docker(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "docker", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// The quick start as a user has it: docker-compose.yml as it is. One system
// serves all that follows, for starting it is what takes long.
func TestCompose(t *testing.T) {
	if !require.Listed(require.Docker) {
		t.Skip("builds images, for minutes: FARANDOLE_REQUIRE=docker runs it")
	}
	t.Parallel()
	d := newDeployment(t)

	t.Run("order", func(t *testing.T) {
		d.awaitStatus(t, confirmed, d.mustPlace(t, "first", "ada"))
		d.awaitStatus(t, cancelled, d.mustPlace(t, "declined", "decline-bob"))
	})
	t.Run("orders are in Postgres", d.ordersInPostgres)
	t.Run("TestNats_syncs_every_write", d.syncsEveryWrite)
	t.Run("hardened", d.hardened)
	t.Run("NATS wants a password", d.login)
	t.Run("health of JetStream", d.healthOfJetStream)
	t.Run("dead letter", d.deadLetter)
	t.Run("kill payment", d.killPayment)
	t.Run("kill Postgres", d.killPostgres)
	t.Run("restart", d.restart)
}

// Order keeps its orders in the database, on its volume, which syncs every commit.
func (d *deployment) ordersInPostgres(t *testing.T) {
	id := d.mustPlace(t, "first", "ada")
	if got := d.query(fmt.Sprintf("SELECT status FROM orders WHERE order_id = '%s'", id)); got != confirmed {
		t.Errorf("order %s is %q in the database, want %s", id, got, confirmed)
	}
	if got := d.query("SELECT current_setting('fsync') || current_setting('synchronous_commit')"); got != "onon" {
		t.Errorf("fsync and synchronous_commit are %s, want both on", got)
	}
	dir := d.query("SELECT current_setting('data_directory')")
	mounts, err := docker(t.Context(), "inspect", "--format", "{{range .Mounts}}{{.Name}}:{{.Destination}};{{end}}", d.container("postgres"))
	if err != nil || !strings.Contains(mounts, "_postgres:"+dir+";") {
		t.Errorf("the database %s is not on the volume: %s, %v", dir, mounts, err)
	}
}

// What NATS has acknowledged is on the disk: the running server says so.
func (d *deployment) syncsEveryWrite(t *testing.T) {
	var vars struct {
		JetStream struct {
			Config struct {
				SyncAlways bool   `json:"sync_always"`
				StoreDir   string `json:"store_dir"`
			}
		}
	}
	if err := json.Unmarshal([]byte(d.inside("wget -q -O - http://127.0.0.1:8222/varz")), &vars); err != nil {
		t.Fatal(err)
	}
	if !vars.JetStream.Config.SyncAlways {
		t.Errorf("the server does not sync always: %+v", vars)
	}
	mounts, err := docker(t.Context(), "inspect", "--format", "{{range .Mounts}}{{.Type}}:{{.Destination}} {{end}}", d.container("nats"))
	if err != nil || !strings.Contains(mounts, "volume:/data") || !strings.HasPrefix(vars.JetStream.Config.StoreDir, "/data") {
		t.Errorf("the store %s is not on the volume: %s, %v", vars.JetStream.Config.StoreDir, mounts, err)
	}
}

// No container can write to its root file system, is root, or may take all of the
// machine; and only order and payment can be reached, from this machine.
func (d *deployment) hardened(t *testing.T) {
	for _, service := range servers {
		out, err := docker(t.Context(), "inspect", "--format",
			"{{.HostConfig.ReadonlyRootfs}} {{.Config.User}} {{range $p, $b := .HostConfig.PortBindings}}{{range $b}}{{.HostIp}}{{end}}{{end}}",
			d.container(service))
		want := "true 65532:65532"
		switch service {
		case "order", "payment":
			want += " 127.0.0.1"
		case "postgres":
			want = "true 70:70"
		}
		if err != nil || strings.TrimSpace(out) != want {
			t.Errorf("%s: %q, %v; want %q", service, out, err, want)
		}
		out, err = docker(t.Context(), "inspect", "--format",
			"{{.HostConfig.CapDrop}} {{.HostConfig.Memory}} {{.HostConfig.NanoCpus}} {{.HostConfig.PidsLimit}}", d.container(service))
		if err != nil || !regexp.MustCompile(`^\[ALL\]( [1-9]\d*){3}$`).MatchString(out) {
			t.Errorf("%s: dropped capabilities and limits of memory, CPU and processes: %q, %v", service, out, err)
		}
		env, err := docker(t.Context(), "inspect", "--format", "{{.Config.Env}} {{.Config.Cmd}}", d.container(service))
		if err != nil || strings.Contains(env, "PASSWORD=") && !strings.Contains(env, "export NATS_PASSWORD=\"'$(cat") {
			t.Errorf("%s shows a password to whoever inspects it: %s, %v", service, env, err)
		}
	}
}

// Who has no password gets nothing from NATS.
func (d *deployment) login(t *testing.T) {
	d.cli("topology", "plan")
	out, err := d.try(t.Context(), "run", "--rm", "-T", "-e", "NATS_PASSWORD_FILE=", "-e", "NATS_PASSWORD=wrong", "cli", "topology", "plan")
	if err == nil || !strings.Contains(err.Error(), "the server refused the login") {
		t.Errorf("with a wrong one: %s, %v", out, err)
	}
}

// The health check fails on a server without JetStream.
func (d *deployment) healthOfJetStream(t *testing.T) {
	check, err := docker(t.Context(), "inspect", "--format", "{{index .Config.Healthcheck.Test 1}}", d.container("nats"))
	if err != nil {
		t.Fatal(err)
	}
	script := `nats-server -p 4333 -m 8333 >/dev/null 2>&1 & pid=$!
		until wget -q -O /dev/null http://127.0.0.1:8333/healthz; do sleep 0.1; done
		if ` + strings.ReplaceAll(check, ":8222", ":8333") + `; then echo healthy; else echo unhealthy; fi; kill $pid`
	if out := strings.TrimSpace(d.inside(script)); out != "unhealthy" {
		t.Errorf("a server without JetStream is %s by %s", out, check)
	}
	if out := strings.TrimSpace(d.inside("if " + check + "; then echo healthy; fi")); out != "healthy" {
		t.Errorf("the server is not healthy by %s", check)
	}
}

// An order that makes payment panic ends in the dead letters; the fault is
// repaired, the letter replayed, and the order goes on.
func (d *deployment) deadLetter(t *testing.T) {
	id := d.mustPlace(t, "poison", "poison-eve")
	var letter string
	bustest.Eventually(t, 2*patience, func() error {
		l := listLetters(t, d.cli("dlq", "list", "--json"))
		if len(l.Entries) != 1 || l.Entries[0].Key != id || l.Entries[0].Consumer != "payment" {
			return fmt.Errorf("dead letters: %+v, want order %s", l, id)
		}
		letter = l.Entries[0].ID
		return nil
	})
	if _, err := do(t.Context(), http.MethodPut, d.payment+"/faults", nil, []byte(`{"poison":false}`)); err != nil {
		t.Fatal(err)
	}
	d.cli("dlq", "replay", letter)
	d.awaitStatus(t, confirmed, id)
	if l := listLetters(t, d.cli("dlq", "list", "--json")); l.Total != 0 {
		t.Errorf("dead letters after the replay: %+v", l)
	}
}

// Payment is killed in the middle of orders and comes back later: all end.
func (d *deployment) killPayment(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	c := newCustomers(ctx, d.shop, 4, "ada")
	payment := d.container("payment")
	for i := range 50 {
		if i == 25 {
			if _, err := docker(ctx, "kill", "--signal", "KILL", payment); err != nil {
				t.Fatal(err)
			}
		}
		c.keys <- fmt.Sprintf("kill-%d", i)
	}
	ids := c.done(t) // orders are taken while payment is away
	d.compose("start", "payment")
	d.awaitStatus(t, confirmed, ids...)
}

// Postgres is killed in the middle of orders: each is taken and stored once.
func (d *deployment) killPostgres(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	stored := d.query("SELECT count(*) FROM orders")
	c := newCustomers(ctx, d.shop, 4, "ada")
	postgres := d.container("postgres")
	const orders = 50
	for i := range orders {
		if i == orders/2 {
			for _, args := range [][]string{{"kill", "--signal", "KILL", postgres}, {"start", postgres}} {
				if _, err := docker(ctx, args...); err != nil {
					t.Fatal(err)
				}
			}
		}
		c.keys <- fmt.Sprintf("kill-postgres-%d", i)
	}
	d.awaitStatus(t, confirmed, c.done(t)...)
	if got, want := d.query("SELECT count(*) FROM orders"), d.query(fmt.Sprintf("SELECT %s + %d", stored, orders)); got != want {
		t.Errorf("%s orders are stored, want %s", got, want)
	}
}

// Everything is stopped and started again: nothing is forgotten.
func (d *deployment) restart(t *testing.T) {
	id := d.mustPlace(t, "before", "ada")
	d.awaitStatus(t, confirmed, id)
	stored := d.query("SELECT count(*) FROM orders")
	d.compose("stop")
	d.compose("up", "--detach")
	d.awaitHealthy(servers...)
	if got := d.query("SELECT count(*) FROM orders"); got != stored {
		t.Errorf("%s orders are stored, before it were %s", got, stored)
	}
	d.awaitStatus(t, confirmed, id, d.mustPlace(t, "after", "ada"))
	if again := d.mustPlace(t, "before", "ada"); again != id {
		t.Errorf("the same Idempotency-Key gives order %s, then %s", id, again)
	}
}
