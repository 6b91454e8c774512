package bus

import (
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/natscontext"
)

// newJetStream makes a JetStream client on a connection.
type newJetStream func(*nats.Conn, ...jetstream.JetStreamOpt) (jetstream.JetStream, error)

// dial connects once. It also returns how to make JetStream clients, which a
// context of the nats CLI may send to another domain.
func (c Config) dial(handlers ...nats.Option) (*nats.Conn, newJetStream, error) {
	opts, err := c.options()
	if err != nil {
		return nil, nil, final{err}
	}
	opts = append(opts, handlers...)
	if c.Context == "" {
		nc, err := nats.Connect("", opts...)
		return nc, jetstream.New, err
	}
	nc, settings, err := natscontext.Connect(c.Context, opts...)
	return nc, jetStreamOf(settings), err
}

func jetStreamOf(s natscontext.Settings) newJetStream {
	switch {
	case s.JSAPIPrefix != "":
		return func(nc *nats.Conn, opts ...jetstream.JetStreamOpt) (jetstream.JetStream, error) {
			return jetstream.NewWithAPIPrefix(nc, s.JSAPIPrefix, opts...)
		}
	case s.JSDomain != "":
		return func(nc *nats.Conn, opts ...jetstream.JetStreamOpt) (jetstream.JetStream, error) {
			return jetstream.NewWithDomain(nc, s.JSDomain, opts...)
		}
	}
	return jetstream.New
}

// options are the connection's options, in an order in which this
// configuration wins over a context's, which comes before them.
func (c Config) options() ([]nats.Option, error) {
	opts := []nats.Option{
		nats.Name(c.Name),
		nats.Timeout(dialTimeout),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectJitter, reconnectJitter),
		nats.IgnoreAuthErrorAbort(),
		nats.PermissionErrOnSubscribe(true),
	}
	if urls := c.urls(); len(urls) > 0 {
		opts = append(opts, func(o *nats.Options) error {
			o.Url, o.Servers = "", urls
			return nil
		})
	}
	if c.InProcess != nil {
		opts = append(opts, nats.InProcessServer(c.InProcess))
	}
	if c.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(c.InboxPrefix))
	}
	login, err := c.login()
	if err != nil {
		return nil, err
	}
	if login != nil {
		opts = append(opts, forgetLogin, login)
	}
	if c.TLSCA != "" {
		opts = append(opts, nats.RootCAs(c.TLSCA))
	}
	if c.TLSCert != "" {
		opts = append(opts, nats.ClientCert(c.TLSCert, c.TLSKey))
	}
	return opts, nil
}

// login is the option of the one configured way to log in, or nil.
func (c Config) login() (nats.Option, error) {
	switch {
	case c.Creds != "":
		return nats.UserCredentials(c.Creds), nil
	case c.NKey != "":
		return nats.NkeyOptionFromSeed(c.NKey)
	case c.User != "":
		return nats.UserInfo(c.User, c.Password), nil
	case c.Token != "":
		return nats.Token(c.Token), nil
	}
	return nil, nil
}

// forgetLogin removes a context's login, so that it is not mixed with ours.
func forgetLogin(o *nats.Options) error {
	o.User, o.Password, o.Token, o.Nkey = "", "", "", ""
	o.UserJWT, o.SignatureCB = nil, nil
	return nil
}
