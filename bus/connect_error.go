package bus

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// connectError is one clear line. The cause can be matched but is not part of
// the text unless it is known to hold no secret.
type connectError struct {
	text  string
	cause error
}

func (e *connectError) Error() string { return e.text }

func (e *connectError) Unwrap() []error { return []error{ErrConnect, e.cause} }

// connectError says where, what was wrong and what to do: the explanation, or
// the cause's own text when there is none.
func (c Config) connectError(explanation string, cause error) error {
	text := fmt.Sprintf("%s to %s: %s", ErrConnect.Error(), c.where(), cmp.Or(explanation, c.redact(cause.Error())))
	return &connectError{text: text, cause: cause}
}

// explainDial words the common causes, "" for the others.
func explainDial(err error) string {
	var malformed *url.Error
	var network *net.OpError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &malformed):
		return "the context's URL is not a NATS URL"
	case errors.Is(err, nats.ErrAuthorization):
		return "the server refused the login: check user and password, token, nkey or credentials"
	case errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAccountAuthExpired):
		return "the login has expired: renew the credentials"
	case errors.Is(err, nats.ErrAuthRevoked):
		return "the login was revoked: get new credentials"
	case errors.As(err, &unknown):
		return "the server's certificate is signed by an unknown authority: check the CA file"
	case errors.As(err, &host):
		return "the server's certificate is for another host: " + host.Error()
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the server's certificate has expired or is not valid yet: " + invalid.Detail
	case errors.As(err, &network) && network.Op == remoteAlert:
		return "the server refused this client's certificate: " + network.Err.Error()
	case isHangUp(err):
		return "the server closed the connection after the TLS handshake: does it accept this client's certificate?"
	case errors.Is(err, nats.ErrSecureConnWanted):
		return "the server does not speak TLS: use nats:// without TLS files, or enable TLS on it"
	case errors.Is(err, nats.ErrSecureConnRequired):
		return "the server wants TLS: use tls:// and a CA file"
	case errors.Is(err, nats.ErrNoServers):
		return "connection refused: is the server running there?"
	case errors.Is(err, nats.ErrNkeysNotSupported):
		return "the server has no nkey logins: use the login it was set up with"
	case isAny(err, nats.ErrTimeout, context.DeadlineExceeded, os.ErrDeadlineExceeded):
		return "no answer in time: is this a NATS server, and reachable?"
	}
	return ""
}

// remoteAlert is the Op of a TLS alert sent by the other side.
const remoteAlert = "remote error"

// isFinal reports that dialing again cannot help.
func isFinal(err error) bool {
	var malformed *url.Error
	var network *net.OpError
	return isRefusedLogin(err) ||
		errors.Is(err, nats.ErrTLS) && !isHangUp(err) ||
		isAny(err, nats.ErrSecureConnWanted, nats.ErrSecureConnRequired, nats.ErrNkeysNotSupported, fs.ErrNotExist, fs.ErrPermission) ||
		errors.As(err, &malformed) || errors.As(err, &network) && network.Op == remoteAlert
}

// isHangUp reports a connection that ended right after the TLS handshake. A
// server that refuses the client's certificate may close it before its alert
// is read, so dialing again tells more.
func isHangUp(err error) bool {
	return errors.Is(err, nats.ErrTLS) && isAny(err, io.EOF, syscall.EPIPE, syscall.ECONNRESET)
}

func isRefusedLogin(err error) bool {
	return isAny(err, nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired)
}

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// explainJetStream says why a server that accepts the connection is of no use.
func explainJetStream(err error) string {
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled):
		return "JetStream is not enabled: start the server with -js, or with a jetstream block in its configuration"
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return "JetStream is not enabled for this account: enable it in the account's configuration"
	case errors.Is(err, context.DeadlineExceeded):
		return "JetStream does not answer: does the cluster have a leader?"
	}
	return ""
}

// where names the servers, without logins.
func (c Config) where() string {
	if c.InProcess != nil {
		return "the server in this process"
	}
	urls := c.urls()
	for i, raw := range urls {
		if u, err := parseURL(raw); err == nil {
			u.User = nil
			urls[i] = u.String()
		}
	}
	where := strings.Join(urls, ", ")
	if c.Context != "" {
		where = strings.TrimSpace("context " + c.Context + " " + where)
	}
	return where
}

// redact removes this configuration's secrets from a text made by others.
func (c Config) redact(text string) string {
	secrets := []string{c.Password, c.Token}
	for _, raw := range c.urls() {
		u, err := parseURL(raw)
		if err != nil || u.User == nil {
			continue
		}
		password, set := u.User.Password()
		if !set {
			password = u.User.Username() // a token
		}
		secrets = append(secrets, u.User.String(), password)
	}
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "***")
		}
	}
	return text
}
