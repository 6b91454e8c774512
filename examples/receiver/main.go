// Command receiver is the other end of "farandole webhook": an HTTP server that
// checks who sends, takes each event once and says so.
//
// It keeps what it has taken in a SQLite file, an event and its key in one
// transaction, before it answers. So an event that is delivered again, because
// the answer got lost or a process was killed, has no second effect. It never
// forgets a key, and its file belongs to one machine: a receiver of its own
// would do its work in the same transaction of its own database, and delete
// keys that are older than anything that can still be replayed.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	_ "modernc.org/sqlite" // the driver

	"github.com/farandole/farandole/event"
)

const (
	maxBody = 8 << 20 // bytes of a request
	grace   = 10 * time.Second
)

// receiver answers 204 to what it has taken, now or earlier. Its other answers
// tell the sender what to do: 401 and 400 mean that a person has to look, 503
// that it should try again.
type receiver struct {
	db   *sql.DB
	keys []*standardwebhooks.Webhook
}

// open opens the file and takes what one of the secrets has signed.
func open(ctx context.Context, file string, secrets ...string) (*receiver, error) {
	r := &receiver{}
	for _, secret := range secrets {
		key, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			return nil, err
		}
		r.keys = append(r.keys, key)
	}
	if len(r.keys) == 0 {
		return nil, errors.New("no secret: whoever finds the URL could send events")
	}
	var err error
	if r.db, err = sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(5000)&_pragma=synchronous(full)"); err != nil {
		return nil, err
	}
	r.db.SetMaxOpenConns(1) // SQLite has one writer
	_, err = r.db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS taken (key TEXT PRIMARY KEY, type TEXT NOT NULL, about TEXT NOT NULL, data BLOB)`)
	if err != nil {
		return nil, errors.Join(err, r.db.Close())
	}
	return r, nil
}

// ServeHTTP takes one event, in either mode of the CloudEvents HTTP binding.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	if err != nil {
		http.Error(w, "body cannot be read", http.StatusRequestEntityTooLarge)
		return
	}
	if !r.verified(body, req.Header) {
		http.Error(w, "no valid signature", http.StatusUnauthorized)
		return
	}
	e, err := event.Decode(map[string][]string(req.Header), body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// The id under the signature, and in binary mode nothing else of the
	// headers, is proven to be the sender's.
	key := req.Header.Get(standardwebhooks.HeaderWebhookID)
	if key != req.Header.Get("Idempotency-Key") || key != string(event.EventKeyOf(e)) {
		http.Error(w, "the key is not that of the event", http.StatusBadRequest)
		return
	}
	first, err := r.take(req.Context(), key, e)
	if err != nil {
		log.Println("take:", err)
		http.Error(w, "cannot take it now", http.StatusServiceUnavailable)
		return
	}
	log.Printf("%s %s about %q, first time: %t", e.Type(), key, event.PartitionKey(e), first) //nolint:gosec // what Decode lets through has no line breaks
	w.WriteHeader(http.StatusNoContent)
}

// verified reports whether a secret has signed the request within five minutes
// of now. Each delivery is signed anew, so retries are never stale.
func (r *receiver) verified(body []byte, header http.Header) bool {
	for _, key := range r.keys {
		if key.Verify(body, header) == nil {
			return true
		}
	}
	return false
}

// take makes the event's effect, here its row, and remembers the key with it.
func (r *receiver) take(ctx context.Context, key string, e event.Event) (first bool, err error) {
	result, err := r.db.ExecContext(ctx, `INSERT INTO taken (key, type, about, data) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`,
		key, e.Type(), string(event.PartitionKey(e)), e.Data())
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// serve answers until ctx ends, and then what is under way.
func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := server.Shutdown(stopping)
	if e := <-ended; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

func run(ctx context.Context, address, file string) error {
	r, err := open(ctx, file, strings.Fields(os.Getenv("FARANDOLE_WEBHOOK_SECRET"))...)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", address)
	if err == nil {
		mux := http.NewServeMux()
		mux.Handle("POST /", r)
		log.Printf("listening on http://%s", l.Addr())
		err = serve(ctx, l, mux)
	}
	return errors.Join(err, r.db.Close())
}

func main() {
	address := flag.String("listen", "127.0.0.1:8090", "where to listen")
	file := flag.String("file", "receiver.db", "where to keep what was taken")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *address, *file)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "receiver:", err)
		os.Exit(1)
	}
}
