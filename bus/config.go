package bus

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/logs"
)

// Defaults of [Config].
const (
	DefaultSource         = "farandole"
	DefaultWait           = 5 * time.Second
	DefaultPublishTimeout = 5 * time.Second
	DefaultMaxPending     = 4096
)

// Config says where to connect, as whom, and what the system's names are.
// At most one of Creds, NKey, User and Token is set.
type Config struct {
	// URL is one or more comma-separated NATS URLs. Defaults to the context's,
	// or nats://127.0.0.1:4222.
	URL string
	// Name is the connection's name at the server. Defaults to Source.
	Name string
	// Source is the CloudEvents source of events sealed by this bus. Defaults to "farandole".
	Source string
	// Names makes subjects and stream names. Defaults to no prefix.
	Names event.Names
	// Creds is the path of a credentials file. Defaults to none.
	Creds string
	// NKey is the path of an nkey seed file. Defaults to none.
	NKey string
	// User and Password log in with a password; User without Password is a
	// token, as for the nats CLI. Defaults to none.
	User, Password string
	// Token is an authentication token. Defaults to none.
	Token string
	// TLSCA is the path of a PEM file with the authorities that sign servers.
	// Defaults to the system's.
	TLSCA string
	// TLSCert and TLSKey are the paths of this client's PEM certificate and
	// key; both or none. Defaults to none.
	TLSCert, TLSKey string
	// Context is the name of a context of the nats CLI, or the absolute path
	// of a context file; the settings above win over its. Defaults to none.
	Context string
	// InboxPrefix begins the subjects on which this client receives answers.
	// With one of its own a user can be kept from reading others' answers.
	// Defaults to the context's, or "_INBOX".
	InboxPrefix string
	// Wait is how long Connect waits for a server that is not up yet, and
	// [Bus.Await] for JetStream. Defaults to 5 s.
	Wait time.Duration
	// PublishTimeout bounds one publish from send to acknowledgement, also
	// while the connection is down. Defaults to 5 s.
	PublishTimeout time.Duration
	// MaxPending bounds the publishes in flight; further ones wait. Defaults to 4,096.
	MaxPending int
	// InProcess is a server in this process to connect to instead of URL. Defaults to none.
	InProcess nats.InProcessConnProvider
	// Logger logs connection events, and what is built on the bus unless that has a logger
	// of its own. Silence is zerolog.Nop(); [SlogLogger] is for log/slog. Defaults to
	// warnings and errors, on stderr.
	Logger zerolog.Logger
}

func (c Config) withDefaults() Config {
	if c.URL == "" && c.Context == "" {
		c.URL = nats.DefaultURL
	}
	c.Logger = logs.Or(c.Logger, logs.Stderr)
	c.Source = cmp.Or(c.Source, DefaultSource)
	c.Name = cmp.Or(c.Name, c.Source)
	if c.User != "" && c.Password == "" && c.Token == "" {
		c.User, c.Token = "", c.User
	}
	if c.Wait == 0 {
		c.Wait = DefaultWait
	}
	if c.PublishTimeout == 0 {
		c.PublishTimeout = DefaultPublishTimeout
	}
	if c.MaxPending == 0 {
		c.MaxPending = DefaultMaxPending
	}
	return c
}

// validate joins all that is wrong. It reads the files, so that a missing or
// broken one is reported as such, before dialing.
func (c Config) validate() error {
	errs := []error{c.Names.Validate(), c.validateURLs(), c.validateLogin(), c.validateTLS()}
	if c.Wait < 0 {
		errs = append(errs, fmt.Errorf("negative Wait %s", c.Wait))
	}
	if c.PublishTimeout < 0 {
		errs = append(errs, fmt.Errorf("negative PublishTimeout %s", c.PublishTimeout))
	}
	if c.MaxPending < 0 {
		errs = append(errs, fmt.Errorf("negative MaxPending %d", c.MaxPending))
	}
	if strings.ContainsAny(c.InboxPrefix, "*> \t\r\n") || strings.HasSuffix(c.InboxPrefix, ".") {
		errs = append(errs, fmt.Errorf("InboxPrefix %q: want a subject without wildcards and final dot", c.InboxPrefix))
	}
	return errors.Join(errs...)
}

// validateURLs never quotes a URL that it cannot parse: it may hold a password.
func (c Config) validateURLs() error {
	var errs []error
	urls := c.urls()
	for i, raw := range urls {
		u, err := parseURL(raw)
		if err != nil || u.Hostname() == "" {
			errs = append(errs, fmt.Errorf("URL %d of %d is not a NATS URL: want nats://host:port, with special characters of a password percent-encoded", i+1, len(urls)))
		}
	}
	return errors.Join(errs...)
}

func (c Config) validateLogin() error {
	var errs []error
	var ways []string
	for _, way := range []struct {
		name string
		set  bool
	}{{"Creds", c.Creds != ""}, {"NKey", c.NKey != ""}, {"User", c.User != "" || c.Password != ""}, {"Token", c.Token != ""}} {
		if way.set {
			ways = append(ways, way.name)
		}
	}
	if len(ways) > 1 {
		errs = append(errs, fmt.Errorf("%s are set: choose one way to log in", strings.Join(ways, " and ")))
	}
	if c.Password != "" && c.User == "" {
		errs = append(errs, errors.New("a password without a user"))
	}
	if c.Creds != "" {
		errs = append(errs, validateCreds(c.Creds))
	}
	if c.NKey != "" {
		if _, err := nats.NkeyOptionFromSeed(c.NKey); err != nil {
			errs = append(errs, fmt.Errorf("nkey seed file %s: %w", c.NKey, err))
		}
	}
	return errors.Join(errs...)
}

func validateCreds(path string) error {
	body, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("credentials file: %w", err)
	}
	_, jwtErr := nkeys.ParseDecoratedJWT(body)
	_, keyErr := nkeys.ParseDecoratedUserNKey(body)
	if jwtErr != nil || keyErr != nil {
		return fmt.Errorf("credentials file %s does not hold a user JWT and its nkey seed", path)
	}
	return nil
}

func (c Config) validateTLS() error {
	var errs []error
	if c.TLSCA != "" {
		pem, err := os.ReadFile(c.TLSCA)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("TLS CA file: %w", err))
		case !x509.NewCertPool().AppendCertsFromPEM(pem):
			errs = append(errs, fmt.Errorf("TLS CA file %s holds no PEM certificate", c.TLSCA))
		}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		errs = append(errs, errors.New("TLSCert and TLSKey belong together: one is missing"))
	} else if c.TLSCert != "" {
		if _, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey); err != nil {
			errs = append(errs, fmt.Errorf("TLS certificate %s with key %s: %w", c.TLSCert, c.TLSKey, err))
		}
	}
	return errors.Join(errs...)
}

// urls are the configured URLs, none when the context or InProcess gives the server.
func (c Config) urls() []string {
	if c.InProcess != nil {
		return nil
	}
	var urls []string
	for u := range strings.SplitSeq(c.URL, ",") {
		if u = strings.TrimSpace(u); u != "" {
			urls = append(urls, u)
		}
	}
	return urls
}

func parseURL(raw string) (*url.URL, error) {
	if !strings.Contains(raw, "://") {
		raw = "nats://" + raw
	}
	return url.Parse(raw)
}
