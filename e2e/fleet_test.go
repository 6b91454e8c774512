package e2e_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
)

// fleet is a system whose every part is a process of its own, kept running as
// a supervisor does: what ends is started again.
type fleet struct {
	shop
	t       testing.TB
	nats    string // URLs
	orders  string // order's database
	gateway string // URL
	books   string // URL of the gateway's books
	members []*member
	bus     *bus.Bus
	db      *sql.DB // order's
	// evidence keeps what processes wrote and, on one node, the server's data.
	// It stays there when the test fails.
	evidence string
}

// member is one of a fleet's processes.
type member struct {
	*process
	url    string
	args   []string
	stderr *os.File
	// fell counts the times that it ended by itself.
	fell int
}

// onOneNode is a fleet whose NATS server is a process like the others; the
// gateway lives and dies with it. orders names order's database, "" for a new file.
func onOneNode(t testing.TB, orders string, flags ...string) *fleet {
	t.Helper()
	f := newFleet(t, orders)
	port := freePort(f.t)
	f.nats = fmt.Sprintf("nats://127.0.0.1:%d", port)
	f.addGateway("nats", "--embedded", "--store", filepath.Join(f.evidence, "store"), "--nats-port", fmt.Sprint(port))
	f.addServices(1, flags...)
	return f
}

// onThreeNodes is a fleet on a cluster in this process, which lives on.
func onThreeNodes(t testing.TB, orders string, flags ...string) *fleet {
	t.Helper()
	f := newFleet(t, orders)
	var urls []string
	for _, s := range bustest.StartCluster(t, 3) {
		urls = append(urls, s.URL())
	}
	f.nats = strings.Join(urls, ",")
	f.addGateway("gateway", "--gateway-books", filepath.Join(f.evidence, "books"))
	f.addServices(3, flags...)
	return f
}

func newFleet(t testing.TB, orders string) *fleet {
	t.Helper()
	evidence, err := os.MkdirTemp("", "farandole-kills-") //nolint:usetesting // it outlives a failed test
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t, orders: orders, evidence: evidence}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the evidence is kept in %s", evidence)
		} else if err := os.RemoveAll(evidence); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		for _, m := range f.members {
			m.kill()
			if err := m.stderr.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return f
}

// addServices starts two of each service; customers talk to one of order's. Its
// database is a file that both share, unless f.orders names another one.
func (f *fleet) addServices(replicas int, flags ...string) {
	f.t.Helper()
	where := []string{"--database-url", f.orders}
	if f.orders == "" {
		store := filepath.Join(f.evidence, "orders")
		f.orders, where = filepath.Join(store, "order.db"), []string{"--store", store}
	}
	flags = append([]string{
		"--server", f.nats, "--replicas", fmt.Sprint(replicas), "--lease", lease, "--max-attempts", "10", "--log-level", "info",
	}, flags...)
	for i := range 2 {
		f.url = f.add(fmt.Sprint("order-", i), "order", append(where, flags...)...).url
		f.add(fmt.Sprint("payment-", i), "payment", append(flags, "--gateway-url", f.gateway)...)
		f.add(fmt.Sprint("inventory-", i), "inventory", flags...)
	}
	f.ready()
	f.db = openDatabase(f.t, f.orders)
	var err error
	if f.bus, err = bus.Connect(f.t.Context(), bus.Config{URL: f.nats}); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := f.bus.Close(); err != nil {
			f.t.Error(err)
		}
	})
}

// addGateway starts the process that serves the gateway.
func (f *fleet) addGateway(name string, flags ...string) {
	f.t.Helper()
	admin := freePort(f.t)
	f.gateway = f.add(name, "gateway", append(flags, "--admin", fmt.Sprintf("127.0.0.1:%d", admin))...).url + "/gateway"
	f.books = localURL(admin) + "/gateway"
}

// add starts a process that serves one service.
func (f *fleet) add(name, service string, flags ...string) *member {
	f.t.Helper()
	return f.addProcess(name, "serve", append([]string{service}, flags...)...)
}

// addProcess starts a process that runs a command with HTTP.
func (f *fleet) addProcess(name, command string, flags ...string) *member {
	f.t.Helper()
	port := freePort(f.t)
	stderr, err := os.Create(filepath.Join(f.evidence, name+".log"))
	if err != nil {
		f.t.Fatal(err)
	}
	m := &member{
		url:    localURL(port),
		args:   append([]string{command, "--http", fmt.Sprintf("127.0.0.1:%d", port)}, flags...),
		stderr: stderr,
	}
	f.members = append(f.members, m)
	m.process = launch(f.t, name, stderr, m.args...)
	return m
}

// again starts a member that has ended.
func (m *member) again() { m.process = launch(m.t, m.name, m.stderr, m.args...) }

// ready waits until all members are ready.
func (f *fleet) ready() {
	f.t.Helper()
	for _, m := range f.members {
		bustest.Eventually(f.t, patience, func() error {
			f.supervise()
			_, err := get(f.t.Context(), m.url+"/readyz")
			return err
		})
	}
}

// supervise starts again what has ended by itself, as a service may whose
// server is killed while it starts.
func (f *fleet) supervise() {
	f.t.Helper()
	for _, m := range f.members {
		select {
		case <-m.exited:
			m.fell++
			f.t.Logf("%s has ended by itself: %s", m.name, m.lastWords())
			if code := m.cmd.ProcessState.ExitCode(); code != 1 || m.fell > 100 {
				f.t.Fatalf("%s has ended %d times by itself, now with %v", m.name, m.fell, m.result)
			}
			m.again()
		default:
		}
	}
}

// lastWords is the last line that a member wrote.
func (m *member) lastWords() string {
	text, err := os.ReadFile(m.stderr.Name())
	if err != nil {
		m.t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// falls is how often members ended by themselves.
func (f *fleet) falls() (n int) {
	for _, m := range f.members {
		n += m.fell
	}
	return n
}

// final waits until every order has ended in one of two ways.
func (f *fleet) final(ids []string) {
	f.t.Helper()
	for _, id := range ids {
		bustest.Eventually(f.t, patience, func() error {
			f.supervise()
			status, err := f.status(f.t.Context(), id)
			if err == nil && !slices.Contains([]string{confirmed, cancelled}, status) {
				err = errors.New("order " + id + " is " + status)
			}
			return err
		})
	}
}
