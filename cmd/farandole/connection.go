package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/event"
)

// connection holds the flags of a connection to NATS. The environment variables are
// those of the nats CLI, as far as it has them.
type connection struct {
	Server   string   `short:"s" env:"NATS_URL" placeholder:"URL" help:"NATS servers, comma-separated. Default: nats://127.0.0.1:4222."`
	Context  string   `env:"NATS_CONTEXT" placeholder:"NAME" help:"A context of the nats CLI. Default: the one that nats context select has chosen, unless --server is given."`
	Creds    string   `env:"NATS_CREDS" placeholder:"FILE" help:"Credentials file."`
	User     string   `env:"NATS_USER" help:"User name."`
	Password string   `env:"NATS_PASSWORD" help:"Password; better in the environment than on the command line."`
	NKey     string   `name:"nkey" env:"NATS_NKEY" placeholder:"FILE" help:"NKey seed file."`
	Token    string   `env:"NATS_TOKEN" help:"Token; better in the environment."`
	TLSCA    string   `name:"tls-ca" env:"NATS_CA" placeholder:"FILE" help:"CA certificate (PEM)."`
	TLSCert  string   `name:"tls-cert" env:"NATS_CERT" placeholder:"FILE" help:"Client certificate (PEM)."`
	TLSKey   string   `name:"tls-key" env:"NATS_KEY" placeholder:"FILE" help:"Client key (PEM)."`
	Inbox    string   `name:"inbox-prefix" env:"NATS_INBOX_PREFIX" placeholder:"SUBJECT" help:"What the subjects begin with on which answers arrive, as in _INBOX_payment. Default: _INBOX."`
	Wait     waitFlag `env:"FARANDOLE_WAIT" placeholder:"DURATION" help:"How long to wait for a server that is not up, or a stream without a leader. Default: 5s; 1m for serve."`

	Prefix     string `env:"FARANDOLE_PREFIX" help:"Prefix of all subjects, streams and buckets of this system."`
	TypePrefix string `env:"FARANDOLE_TYPE_PREFIX" placeholder:"com.acme." help:"Reverse-DNS prefix of event types, with its final dot."`
}

// waitFlag is "--wait 5s", for a server; without a duration it is the "--wait" of
// dlq replay. One parser takes both, for a global flag's name is taken in all commands.
type waitFlag struct {
	server time.Duration
	bare   bool
}

// Decode reads a duration if one follows.
func (w *waitFlag) Decode(ctx *kong.DecodeContext) error {
	next := ctx.Scan.Peek()
	if next.IsValue() {
		d, err := time.ParseDuration(next.String())
		switch {
		case err == nil:
			w.server = d
			ctx.Scan.Pop()
			return nil
		case next.Type == kong.FlagValueToken: // --wait=x, or of the environment
			return fmt.Errorf("%q: want a duration, as in 5s", next.String())
		}
	}
	w.bare = true
	return nil
}

// selectedContext is the context that "nats context select" has chosen, "" for none. It
// is where that command keeps it.
func selectedContext() string {
	dir := os.Getenv("XDG_CONFIG_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	name, err := os.ReadFile(filepath.Join(dir, "nats", "context.txt")) //nolint:gosec // where the user keeps it
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}

// config returns the settings of a connection with this name.
func (c connection) config(name string, log zerolog.Logger) bus.Config {
	if c.Server == "" && c.Context == "" {
		c.Context = selectedContext()
	}
	return bus.Config{
		URL:         c.Server,
		Name:        "farandole " + name,
		Names:       event.Names{Prefix: c.Prefix, TypePrefix: c.TypePrefix},
		Context:     c.Context,
		Creds:       c.Creds,
		NKey:        c.NKey,
		User:        c.User,
		Password:    c.Password,
		Token:       c.Token,
		TLSCA:       c.TLSCA,
		TLSCert:     c.TLSCert,
		TLSKey:      c.TLSKey,
		InboxPrefix: c.Inbox,
		Wait:        c.Wait.server,
		Logger:      log,
	}
}

// withBus runs f with a connection that is named after the command, and then closes
// the connection.
func (a *app) withBus(ctx context.Context, command string, f func(*bus.Bus) error) error {
	return withConfig(ctx, a.root.Connection.config(command, a.log("warn")), f)
}

func withConfig(ctx context.Context, cfg bus.Config, f func(*bus.Bus) error) error {
	b, err := bus.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	err = f(b)
	if closeErr := b.Close(); err == nil {
		err = closeErr
	}
	return err
}
