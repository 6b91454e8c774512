package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

const secret = "s3cr3t-Pa55"

func withPassword(password string) func(*server.Options) {
	return func(o *server.Options) {
		o.Users = []*server.User{{Username: "order", Password: password}}
	}
}

// connectFails connects with cfg and returns the error, after checking what
// holds for every failure: it is one line, matches ErrConnect and tells no secret.
func connectFails(t *testing.T, cfg bus.Config) string {
	t.Helper()
	began := time.Now()
	b, err := bus.Connect(t.Context(), cfg)
	if err == nil {
		t.Fatal("connected", b.Close())
	}
	if !errors.Is(err, bus.ErrConnect) {
		t.Errorf("%v does not match ErrConnect", err)
	}
	if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "\n") {
		t.Errorf("not one line without secrets: %q", err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("took %s", took)
	}
	return err.Error()
}

func mention(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not mention %q", text, want)
		}
	}
}

func TestWrong_login_is_told_at_once_without_the_secret(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{Tune: withPassword("right")})
	host := strings.TrimPrefix(s.URL(), "nats://")
	for name, cfg := range map[string]bus.Config{
		"password":        {URL: s.URL(), User: "order", Password: secret},
		"password in URL": {URL: "nats://order:" + secret + "@" + host},
		"token":           {URL: s.URL(), Token: secret},
		"token in URL":    {URL: "nats://" + secret + "@" + host},
		"nothing":         {URL: s.URL()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg.Wait = time.Minute // it must not be waited for
			mention(t, connectFails(t, cfg), s.URL(), "refused the login")
		})
	}
}

func TestA_foreign_nkey_is_told_at_once(t *testing.T) {
	t.Parallel()
	mine, public := newNKey(t)
	foreign, _ := newNKey(t)
	s := bustest.StartServer(t, bustest.ServerConfig{Tune: func(o *server.Options) {
		o.Nkeys = []*server.NkeyUser{{Nkey: public}}
	}})
	bustest.Connect(t, bus.Config{URL: s.URL(), NKey: mine})
	mention(t, connectFails(t, bus.Config{URL: s.URL(), NKey: foreign, Wait: time.Minute}), "refused the login")
	open := bustest.StartServer(t, bustest.ServerConfig{})
	mention(t, connectFails(t, bus.Config{URL: open.URL(), NKey: mine, Wait: time.Minute}), "no nkey logins")
}

func newNKey(t *testing.T) (seedFile, public string) {
	t.Helper()
	kp, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := kp.Seed()
	if err != nil {
		t.Fatal(err)
	}
	public, err = kp.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return writeFile(t, "user.nk", seed), public
}

func TestWrong_CA_and_expired_certificates_are_told(t *testing.T) {
	t.Parallel()
	ca, otherCA := newAuthority(t), newAuthority(t)
	valid := func(o *server.Options) { o.TLSConfig = serverTLS(ca, ca.issue(t, time.Hour)) }
	expired := func(o *server.Options) { o.TLSConfig = serverTLS(ca, ca.issue(t, -time.Hour)) }
	good := bustest.StartServer(t, bustest.ServerConfig{Tune: valid})
	stale := bustest.StartServer(t, bustest.ServerConfig{Tune: expired})
	cert, key := ca.issue(t, time.Hour).files(t)
	oldCert, oldKey := ca.issue(t, -time.Hour).files(t)
	otherCert, otherKey := otherCA.issue(t, time.Hour).files(t)
	for name, tc := range map[string]struct {
		cfg  bus.Config
		want string
	}{
		"wrong CA":              {bus.Config{URL: good.URL(), TLSCA: otherCA.file(t), TLSCert: cert, TLSKey: key}, "unknown authority: check the CA file"},
		"no CA":                 {bus.Config{URL: good.URL(), TLSCert: cert, TLSKey: key}, "unknown authority"},
		"expired server":        {bus.Config{URL: stale.URL(), TLSCA: ca.file(t), TLSCert: cert, TLSKey: key}, "server's certificate has expired"},
		"expired client":        {bus.Config{URL: good.URL(), TLSCA: ca.file(t), TLSCert: oldCert, TLSKey: oldKey}, "expired certificate"},
		"client of another CA":  {bus.Config{URL: good.URL(), TLSCA: ca.file(t), TLSCert: otherCert, TLSKey: otherKey}, "refused this client's certificate"},
		"no client certificate": {bus.Config{URL: good.URL(), TLSCA: ca.file(t)}, "certificate required"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.cfg.Wait = time.Minute
			mention(t, connectFails(t, tc.cfg), tc.cfg.URL, tc.want)
		})
	}
	bustest.Connect(t, bus.Config{URL: good.URL(), TLSCA: ca.file(t), TLSCert: cert, TLSKey: key})
}

func TestA_password_rotated_while_running_turns_health_red_until_it_is_restored(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{Tune: withPassword(secret)})
	b := bustest.Connect(t, bus.Config{
		URL: s.URL(), User: "order", Password: secret, PublishTimeout: time.Second,
		Names: event.Names{Prefix: bustest.Prefix()},
	})
	bustest.Provision(t, b, topology.Config{})
	if err := b.Health(); err != nil {
		t.Fatal(err)
	}

	// A reload that ends a connection reads its counts without a lock (nats-server
	// 2.15.2): it has to be idle.
	if err := b.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
	s.Reload(t, withPassword("rotated"))
	bustest.Eventually(t, time.Minute, func() error {
		err := b.Health()
		if errors.Is(err, bus.ErrUnavailable) && strings.Contains(err.Error(), "authorization violation") {
			return nil
		}
		return fmt.Errorf("health is %w", err)
	})
	if text := b.Health().Error(); strings.Contains(text, secret) {
		t.Errorf("health tells the secret: %s", text)
	}
	if _, err := b.Publish(t.Context(), newEvent(t, b, "k")); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("publish while logged out: %v", err)
	}

	// The client library alone gives up after the second refusal.
	refusals := b.Conn().Stats().Reconnects
	s.Reload(t, withPassword(secret))
	bustest.Eventually(t, time.Minute, b.Health)
	if b.Conn().Stats().Reconnects <= refusals {
		t.Error("healthy without a reconnect")
	}
	if _, err := b.Publish(t.Context(), newEvent(t, b, "k")); err != nil {
		t.Errorf("publish after the recovery: %v", err)
	}
}

func TestConnectWaitsForALateServer(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{})
	url := s.URL()
	s.Stop(t)
	type result struct {
		b   *bus.Bus
		err error
	}
	connected := make(chan result, 1)
	go func() {
		b, err := bus.Connect(context.Background(), bus.Config{URL: url, Wait: 30 * time.Second})
		connected <- result{b, err}
	}()
	s.Restart(t)
	r := <-connected
	if r.err != nil {
		t.Fatal(r.err)
	}
	if err := r.b.Close(); err != nil {
		t.Error(err)
	}
}

// Who starts a service before its server is told what it waits for, once.
func TestConnectTellsWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{})
	url := s.URL()
	s.Stop(t)
	log := new(logLines)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := bus.Connect(ctx, bus.Config{URL: url, Wait: time.Minute, Logger: zerolog.New(log)})
		ended <- err
	}()
	bustest.Eventually(t, time.Minute, func() bool { return len(log.with("connection refused")) > 0 })
	<-time.After(time.Second) // several dials
	cancel()
	if err := <-ended; !errors.Is(err, bus.ErrConnect) {
		t.Errorf("got %v", err)
	}
	if told := log.with("waiting for nats"); len(told) != 1 {
		t.Errorf("told %d times: %s", len(told), told)
	}
}

func TestConnectGivesUpWithAClearError(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never speaks
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := silent.Close(); err != nil {
			t.Error(err)
		}
	})
	down := bustest.StartServer(t, bustest.ServerConfig{})
	down.Stop(t)
	plain := bustest.StartServer(t, bustest.ServerConfig{Tune: func(o *server.Options) { o.JetStream = false }})
	empty := writeFile(t, "empty", []byte("nothing"))
	for name, tc := range map[string]struct {
		cfg  bus.Config
		want []string
	}{
		"refused":             {bus.Config{URL: down.URL()}, []string{down.URL(), "connection refused"}},
		"several refused":     {bus.Config{URL: down.URL() + ", nats://u:" + secret + "@127.0.0.1:1"}, []string{down.URL() + ", nats://127.0.0.1:1"}},
		"silent":              {bus.Config{URL: "nats://" + silent.Addr().String()}, []string{"no answer in time"}},
		"no such host":        {bus.Config{URL: "nats://host.invalid:4222"}, []string{"nats://host.invalid:4222", "host.invalid"}},
		"no JetStream":        {bus.Config{URL: plain.URL()}, []string{plain.URL(), "JetStream is not enabled"}},
		"no TLS at server":    {bus.Config{URL: strings.Replace(plain.URL(), "nats:", "tls:", 1)}, []string{"does not speak TLS"}},
		"malformed URL":       {bus.Config{URL: "nats://u:" + secret + "#x@h:4222"}, []string{"URL 1 of 1 is not a NATS URL"}},
		"credentials missing": {bus.Config{Creds: "no/such.creds"}, []string{"credentials file", "no/such.creds", "no such file"}},
		"nkey missing":        {bus.Config{NKey: "no/such.nk"}, []string{"nkey seed file no/such.nk"}},
		"nkey broken":         {bus.Config{NKey: empty}, []string{"nkey seed file " + empty}},
		"CA missing":          {bus.Config{TLSCA: "no/such.pem"}, []string{"TLS CA file", "no/such.pem"}},
		"CA broken":           {bus.Config{TLSCA: empty}, []string{"holds no PEM certificate"}},
		"certificate broken":  {bus.Config{TLSCert: empty, TLSKey: empty}, []string{"TLS certificate " + empty}},
		"key missing":         {bus.Config{TLSCert: empty}, []string{"TLSCert and TLSKey"}},
		"two logins":          {bus.Config{Token: "t", User: "u", Password: secret}, []string{"User and Token"}},
		"password alone":      {bus.Config{Password: secret}, []string{"a password without a user"}},
		"unknown context":     {bus.Config{Context: "no-such-context"}, []string{"no-such-context"}},
		"bad prefix":          {bus.Config{Names: event.Names{Prefix: "A b"}}, []string{"prefix"}},
		"negative":            {bus.Config{Wait: -1}, []string{"negative Wait"}},
		"credentials broken":  {bus.Config{Creds: empty}, []string{"credentials file " + empty, "user JWT"}},
		"inbox prefix":        {bus.Config{InboxPrefix: "_INBOX.*"}, []string{"InboxPrefix"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.cfg.Wait == 0 {
				tc.cfg.Wait = 300 * time.Millisecond
			}
			mention(t, connectFails(t, tc.cfg), tc.want...)
		})
	}
}

func TestConnectListsAllThatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := bus.Connect(t.Context(), bus.Config{
		URL: "nats://h:bad,nats://", Creds: "no/such.creds", NKey: "no/such.nk", TLSCA: "no/such.pem",
		Wait: -1, PublishTimeout: -1, MaxPending: -1,
	})
	if err == nil {
		t.Fatal("connected")
	}
	mention(t, err.Error(), "URL 1 of 2", "URL 2 of 2", "Creds and NKey", "such.creds", "such.nk", "such.pem",
		"Wait", "PublishTimeout", "MaxPending")
}

func TestConnectUsesAContextOfTheCLI(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{Tune: withPassword(secret)})
	settings := func(m map[string]string) string {
		body, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return writeFile(t, "context.json", body)
	}
	complete := settings(map[string]string{"url": s.URL(), "user": "order", "password": secret})
	bustest.Connect(t, bus.Config{Context: complete})

	t.Run("explicit settings win", func(t *testing.T) {
		t.Parallel()
		other := settings(map[string]string{"url": "nats://127.0.0.1:1", "token": "of-the-context"})
		bustest.Connect(t, bus.Config{Context: other, URL: s.URL(), User: "order", Password: secret})
	})
	t.Run("wrong password in the context", func(t *testing.T) {
		t.Parallel()
		wrong := settings(map[string]string{"url": s.URL(), "user": "order", "password": secret + "x"})
		mention(t, connectFails(t, bus.Config{Context: wrong, Wait: time.Minute}), wrong, "refused the login")
	})
	t.Run("malformed URL in the context", func(t *testing.T) {
		t.Parallel()
		bad := settings(map[string]string{"url": "nats://order:" + secret + "#@h:1"})
		mention(t, connectFails(t, bus.Config{Context: bad, Wait: time.Minute}), bad, "not a NATS URL")
	})
}

func TestUserAloneIsAToken(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{Tune: func(o *server.Options) { o.Authorization = secret }})
	bustest.Connect(t, bus.Config{URL: s.URL(), User: secret})
	bustest.Connect(t, bus.Config{URL: s.URL(), Token: secret})
}

func TestConnectEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	_, err := bus.Connect(ctx, bus.Config{URL: "nats://127.0.0.1:1", Wait: time.Minute})
	if !errors.Is(err, bus.ErrConnect) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestHealthFollowsTheServer(t *testing.T) {
	t.Parallel()
	s := bustest.StartServer(t, bustest.ServerConfig{})
	b := bustest.Connect(t, bus.Config{URL: s.URL()})
	s.Stop(t)
	bustest.Eventually(t, time.Minute, func() bool {
		err := b.Health()
		return errors.Is(err, bus.ErrUnavailable) && strings.Contains(err.Error(), "no connection since")
	})
	s.Restart(t)
	bustest.Eventually(t, time.Minute, b.Health)
	for range 2 {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := b.Health(); !errors.Is(err, bus.ErrClosed) {
		t.Errorf("health after close: %v", err)
	}
}

func writeFile(t *testing.T, name string, body []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, body, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
