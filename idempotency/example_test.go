package idempotency_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/farandole/farandole/idempotency"
	"github.com/farandole/farandole/outbox"
	"github.com/farandole/farandole/outbox/sqlite"
)

// A transfer is made once, however often its client asks for it.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // an example
	db, err := sqlite.Open(filepath.Join(dir, "bank.db"))
	if err != nil {
		panic(err)
	}
	defer db.Close() //nolint:errcheck // an example
	once, err := middleware(context.Background(), db)
	if err != nil {
		panic(err)
	}

	transfers := 0
	h := once(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		transfers++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"transfer":%d}`, transfers)
	}))
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/transfers", strings.NewReader(`{"amount":100}`)) //nolint:noctx // an example
		r.Header.Set(idempotency.Header, `"8e03978e-40d5-43dd-bc93-6894a57f9324"`)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Printf("%d %s replayed=%q\n", w.Code, w.Body, w.Header().Get("Idempotent-Replayed"))
	}
	// Output:
	// 201 {"transfer":1} replayed=""
	// 201 {"transfer":1} replayed="true"
}

func middleware(ctx context.Context, db *sql.DB) (func(http.Handler) http.Handler, error) {
	store, err := idempotency.NewSQL(db, outbox.SQLite)
	if err != nil {
		return nil, err
	}
	if err := store.Migrate(ctx); err != nil {
		return nil, err
	}
	return idempotency.New(store, idempotency.Config{
		Scope: func(r *http.Request) string { user, _, _ := r.BasicAuth(); return user },
	})
}
