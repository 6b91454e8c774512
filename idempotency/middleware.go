package idempotency

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"github.com/farandole/farandole/internal/web"
)

// Config holds the settings of the middleware.
type Config struct {
	// Scope returns whose key it is: the tenant, or the customer. Return only what the
	// caller has proved, or one could read another's answers. Required.
	Scope func(r *http.Request) string
	// TTL is how long a key is remembered after its answer. Defaults to 24 h.
	TTL time.Duration
	// Timeout is when the context of a request ends. If its process dies, the key is
	// free again so long after the request began. Defaults to 30 s.
	Timeout time.Duration
	// MaxBody is how many bytes the body of a request may have. Defaults to 1 MiB.
	MaxBody int64
	// MaxAnswer is how many bytes the body of an answer may have that is kept. A [KV]
	// holds a message of 4/3 of that. Defaults to 256 KiB.
	MaxAnswer int
	// Logger logs answers that could not be stored. Defaults to silence.
	Logger zerolog.Logger
}

func (cfg *Config) complete() error {
	var errs []error
	if cfg.Scope == nil {
		errs = append(errs, fmt.Errorf("%w: Scope is missing: whose keys are they?", ErrConfig))
	}
	for name, d := range map[string]*time.Duration{"TTL": &cfg.TTL, "Timeout": &cfg.Timeout} {
		if *d != 0 && *d < time.Second {
			errs = append(errs, fmt.Errorf("%w: %s %v: want at least 1s", ErrConfig, name, *d))
		}
	}
	if cfg.MaxBody < 0 || cfg.MaxAnswer < 0 {
		errs = append(errs, fmt.Errorf("%w: MaxBody %d, MaxAnswer %d: want a number of bytes", ErrConfig, cfg.MaxBody, cfg.MaxAnswer))
	}
	defaultTo(&cfg.TTL, 24*time.Hour)
	defaultTo(&cfg.Timeout, 30*time.Second)
	defaultTo(&cfg.MaxBody, 1<<20)
	defaultTo(&cfg.MaxAnswer, 256<<10)
	if cfg.TTL < cfg.Timeout {
		errs = append(errs, fmt.Errorf("%w: TTL %v is shorter than Timeout %v", ErrConfig, cfg.TTL, cfg.Timeout))
	}
	return errors.Join(errs...)
}

func defaultTo[T comparable](v *T, value T) {
	if *v == *new(T) {
		*v = value
	}
}

// New returns the middleware: see the package. The error matches [ErrConfig].
func New(store Store, cfg Config) (func(http.Handler) http.Handler, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	m := &middleware{store, cfg}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost && r.Method != http.MethodPatch {
				next.ServeHTTP(w, r)
				return
			}
			m.serve(w, r, next)
		})
	}, nil
}

type middleware struct {
	store Store
	cfg   Config
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	key, ok := keyOf(r.Header)
	if !ok {
		refuse(w, http.StatusBadRequest, "idempotency-key-missing", Header+" is missing",
			fmt.Sprintf("This operation needs one header %s of 1 to %d characters, another one for each request that is not a repetition.", Header, maxKey))
		return
	}
	body, problem := web.ReadBody(w, r, m.cfg.MaxBody)
	if problem != nil {
		problem.Write(w)
		return
	}
	claim := Claim{
		Key: hash(m.cfg.Scope(r), key), Fingerprint: fingerprint(r, body), Owner: rand.Text(),
		Lease: m.cfg.Timeout, TTL: m.cfg.TTL,
	}
	ctx, cancel := context.WithTimeout(r.Context(), m.cfg.Timeout)
	defer cancel()
	there, err := m.store.Begin(ctx, claim)
	switch {
	case err != nil:
		m.cfg.Logger.Warn().Err(err).Msg("request not begun: the store of idempotency keys cannot be reached")
		web.NewProblem(http.StatusServiceUnavailable, "unavailable", "Nothing was done: the service cannot reach its database now. Send the same request again.").Write(w)
	case there != nil:
		there.repeat(w, claim)
	default:
		m.run(w, r.WithContext(context.WithValue(ctx, idKey{}, hash(claim.Key, claim.Fingerprint))), next, claim)
	}
}

// repeat answers a request whose key is taken.
func (there *Record) repeat(w http.ResponseWriter, c Claim) {
	switch {
	case there.Fingerprint != c.Fingerprint:
		refuse(w, http.StatusUnprocessableEntity, "idempotency-key-reused", Header+" is already used",
			"The key was used for a request with another path, query or body. Send another request with a key of its own.")
	case there.Answer == nil:
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusConflict, "idempotency-key-outstanding", "A request is outstanding for this "+Header,
			"A request with the same key is being processed. Send this one again later.")
	case there.Answer.TooLarge:
		refuse(w, http.StatusGone, "answer-not-kept", "The answer was not kept",
			"The request was carried out. Its answer was too large to be kept.")
	default:
		w.Header().Set("Idempotent-Replayed", "true")
		_ = there.Answer.send(w) //nolint:errcheck // the client has gone, nobody is left to tell
	}
}

// run has the handler carry the request out, and stores its answer before it is sent.
func (m *middleware) run(w http.ResponseWriter, r *http.Request, next http.Handler, c Claim) {
	// What has happened is stored although the client has gone, or the time is over.
	ctx := context.WithoutCancel(r.Context())
	rec := &recorder{w: w, limit: m.cfg.MaxAnswer, header: http.Header{}}
	returned := false
	defer func() {
		if !returned { // a panic
			m.end(ctx, c, func(ctx context.Context) error { return m.store.Release(ctx, c) })
		}
	}()
	next.ServeHTTP(rec, r)
	returned = true
	answer := rec.answer()
	if final(answer.Status) {
		m.end(ctx, c, func(ctx context.Context) error { return m.store.Complete(ctx, c, answer) })
	} else {
		m.end(ctx, c, func(ctx context.Context) error { return m.store.Release(ctx, c) })
	}
	if !rec.passed {
		_ = rec.pass() //nolint:errcheck // the client has gone, nobody is left to tell
	}
}

// endTimeout bounds how long an answer waits to be stored.
const endTimeout = 5 * time.Second

// end ends a claim. If that fails the answer is sent all the same: what it tells is true.
func (m *middleware) end(ctx context.Context, c Claim, how func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if err := how(ctx); err != nil {
		m.cfg.Logger.Warn().Err(err).Str("key", c.Key).Msg("answer not stored: the same request may run again")
	}
}

// refuse answers with a problem document that has the title of the draft.
func refuse(w http.ResponseWriter, status int, kind, title, detail string) {
	w.Header().Set("Link", `<https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/>; rel="describedby"`)
	p := web.NewProblem(status, kind, detail)
	p.Title = title
	p.Write(w)
}
