package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/idempotency"
)

// service is an HTTP service behind the middleware.
type service struct {
	t    *testing.T
	url  string
	runs atomic.Int32 // of its handler
}

// tenant is what a test takes for whom the caller is.
const tenant = "X-Tenant"

func serve(t *testing.T, store idempotency.Store, cfg idempotency.Config, h http.HandlerFunc) *service {
	t.Helper()
	s := &service{t: t}
	cfg.Scope = func(r *http.Request) string { return r.Header.Get(tenant) }
	once, err := idempotency.New(store, cfg)
	must(t, err)
	web := httptest.NewServer(once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		h(w, r)
	})))
	t.Cleanup(web.Close)
	s.url = web.URL
	return s
}

// call sends a request; header are names and values.
func (s *service) call(method, path, body string, header ...string) (*http.Response, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	must(s.t, err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	must(s.t, err)
	return answer, string(text)
}

// post wants a status, and the type of a problem if there is one.
func (s *service) post(body string, status int, kind string, header ...string) (*http.Response, string) {
	s.t.Helper()
	answer, text := s.call(http.MethodPost, "/transfers?a=1", body, header...)
	if answer == nil || answer.StatusCode != status || !strings.Contains(text, kind) {
		s.t.Fatalf("%s %v: %+v %s", body, header, answer, text)
	}
	return answer, text
}

// ran wants the handler to have run so often.
func (s *service) ran(want int32) {
	s.t.Helper()
	if n := s.runs.Load(); n != want {
		s.t.Errorf("the handler ran %d times, want %d", n, want)
	}
}

const key = idempotency.Header

// created answers with what tells one run from another.
func created(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Location", "/transfers/7")
	w.Header().Set("Set-Cookie", "a=b")
	w.WriteHeader(http.StatusEarlyHints)
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "%s at %d", body, time.Now().UnixNano())
}

func TestSame_request_gets_the_stored_answer(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open backend) {
		t.Helper()
		s := serve(t, open(), idempotency.Config{}, created)
		first, text := s.post(`{"a":1,"b":[2]}`, 201, "", key, "k-1", "Content-Type", "application/json")
		if first.Header.Get("Idempotent-Replayed") != "" || first.Header.Get("Set-Cookie") == "" {
			t.Errorf("the first answer: %v", first.Header)
		}
		for _, same := range []string{`{"a":1,"b":[2]}`, ` { "b" : [2.0], "a" : 1 } `} {
			for _, k := range []string{"k-1", `"k-1"`, ` "k-1" ;v=1`} {
				again, repeated := s.post(same, 201, "", key, k, "Content-Type", "application/json")
				if repeated != text || again.Header.Get("Location") != "/transfers/7" || again.Header.Get("Idempotent-Replayed") != "true" {
					t.Errorf("%s: %v %s, was %s", same, again.Header, repeated, text)
				}
				if again.Header.Get("Set-Cookie") != "" {
					t.Error("a cookie was kept")
				}
			}
		}
		s.ran(1)
	})
}

func TestAnother_request_with_the_key_is_refused(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open backend) {
		t.Helper()
		s := serve(t, open(), idempotency.Config{}, created)
		s.post(`{"a":1}`, 201, "", key, "k")
		const reused = `"type":"urn:farandole:problem:idempotency-key-reused","title":"Idempotency-Key is already used","status":422`
		s.post(`{"a":2}`, 422, reused, key, "k")
		s.post(`{"a":1} `, 422, reused, key, "k", "Content-Type", "text/plain")
		for _, path := range []string{"/transfers?a=2", "/payments?a=1"} {
			if answer, text := s.call(http.MethodPost, path, `{"a":1}`, key, "k"); answer.StatusCode != 422 {
				t.Errorf("%s: %s", path, text)
			}
		}
		if answer, text := s.call(http.MethodPatch, "/transfers?a=1", `{"a":1}`, key, "k"); answer.StatusCode != 422 {
			t.Errorf("PATCH: %s", text)
		}
		s.ran(1)
		// Whether another tenant uses the key is not to be found out.
		s.post(`{"a":2}`, 201, "", key, "k", tenant, "another")
		s.ran(2)
	})
}

func TestRequest_under_way_is_told_to_the_second_one(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open backend) {
		t.Helper()
		began, finish := make(chan struct{}), make(chan struct{})
		s := serve(t, open(), idempotency.Config{}, func(w http.ResponseWriter, r *http.Request) {
			close(began)
			<-finish
			created(w, r)
		})
		ended := make(chan string)
		go func() {
			_, text := s.call(http.MethodPost, "/transfers?a=1", "a", key, "k")
			ended <- text
		}()
		<-began
		answer, _ := s.post("a", 409, `"type":"urn:farandole:problem:idempotency-key-outstanding"`, key, "k")
		if answer.Header.Get("Retry-After") != "1" || answer.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%v", answer.Header)
		}
		s.post("b", 422, "idempotency-key-reused", key, "k")
		close(finish)
		first := <-ended
		if _, text := s.post("a", 201, "", key, "k"); text != first {
			t.Errorf("%s, was %s", text, first)
		}
		s.ran(1)
	})
}

func TestRequest_without_one_key_is_refused(t *testing.T) {
	t.Parallel()
	s := serve(t, kvBackend(t)(), idempotency.Config{MaxBody: 10}, created)
	for _, header := range [][]string{
		{}, {key, ""}, {key, "a", key, "b"}, {key, strings.Repeat("k", 256)}, {key, `"`}, {key, `""`}, {key, `"a`}, {key, `"a"b`}, {key, `"\n"`},
	} {
		s.post("a", 400, "urn:farandole:problem:idempotency-key-missing", header...)
	}
	s.post("more than ten", 413, "urn:farandole:problem:too-large", key, "k")
	s.ran(0)
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
		if answer, text := s.call(method, "/", "more than ten"); answer.StatusCode != 201 {
			t.Errorf("%s: %s", method, text)
		}
	}
	s.ran(3)
}

func TestAnswer_that_asks_to_try_again_frees_the_key(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open backend) {
		t.Helper()
		var status atomic.Int32
		s := serve(t, open(), idempotency.Config{}, func(w http.ResponseWriter, _ *http.Request) {
			code := int(status.Load())
			if code == 0 {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(code)
		})
		if answer, _ := s.call(http.MethodPost, "/transfers?a=1", "a", key, "k"); answer != nil {
			t.Errorf("a panic is answered: %+v", answer)
		}
		for _, code := range []int{500, 503, 408, 425, 429, 402} {
			status.Store(int32(code))
			if answer, text := s.call(http.MethodPost, "/transfers?a=1", "a", key, "k"); answer == nil || answer.StatusCode != code {
				t.Fatalf("%d: %+v %s", code, answer, text)
			}
		}
		status.Store(201)
		s.post("a", 402, "", key, "k") // what was declined stays declined
		s.ran(7)
	})
}

func TestLarge_answer_is_sent_and_not_kept(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open backend) {
		t.Helper()
		s := serve(t, open(), idempotency.Config{MaxAnswer: 10}, func(w http.ResponseWriter, r *http.Request) {
			if _, streams := w.(http.Flusher); streams {
				t.Error("an answer that is held back cannot be flushed")
			}
			w.WriteHeader(http.StatusCreated)
			for range 5 {
				io.WriteString(w, r.Header.Get("X-Write")) //nolint:errcheck // the test sees what arrives
			}
		})
		if _, text := s.post("a", 201, "", key, "k", "X-Write", "abc"); text != "abcabcabcabcabc" {
			t.Errorf("%s", text)
		}
		s.post("a", 410, "urn:farandole:problem:answer-not-kept", key, "k", "X-Write", "abc")
		s.post("b", 201, "", key, "l", "X-Write", "ab")
		if _, text := s.post("b", 201, "", key, "l", "X-Write", "ab"); text != "ababababab" {
			t.Errorf("%s", text)
		}
		s.ran(2)
	})
}

// dying fails as a process that dies between the effect and the answer.
type dying struct {
	idempotency.Store
	dead atomic.Bool
}

func (d *dying) Complete(ctx context.Context, c idempotency.Claim, a idempotency.Answer) error {
	if d.dead.Load() {
		return errors.New("the process is dead")
	}
	return d.Store.Complete(ctx, c, a)
}

func TestCrash_before_the_answer_is_stored_has_the_same_request_run_again_under_its_id(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open backend) {
		t.Helper()
		var ids [2]atomic.Value
		store := &dying{Store: open()}
		var s *service
		s = serve(t, store, idempotency.Config{Timeout: time.Second}, func(w http.ResponseWriter, r *http.Request) {
			if n := s.runs.Load(); n <= 2 {
				ids[n-1].Store(idempotency.ID(r.Context()))
			}
			created(w, r)
		})
		store.dead.Store(true)
		s.post("a", 201, "", key, "k")
		s.post("a", 409, "idempotency-key-outstanding", key, "k")
		s.post("b", 422, "idempotency-key-reused", key, "k")
		store.dead.Store(false)
		bustest.Eventually(t, patience, func() error {
			if answer, text := s.call(http.MethodPost, "/transfers?a=1", "a", key, "k"); answer.StatusCode != 201 {
				return errors.New(text)
			}
			return nil
		})
		s.ran(2)
		if one, two := ids[0].Load(), ids[1].Load(); one != two || len(one.(string)) != 52 {
			t.Errorf("ids %v and %v", one, two)
		}
	})
}

func TestContext_of_a_request_ends_with_its_lease(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open backend) {
		t.Helper()
		s := serve(t, open(), idempotency.Config{Timeout: time.Second}, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Hang") != "" {
				<-r.Context().Done()
				w.WriteHeader(http.StatusGatewayTimeout)
			}
		})
		s.post("a", 504, "", key, "k", "X-Hang", "1")
		s.post("a", 200, "", key, "k")
		s.ran(2)
	})
}

// The client of a request that has lost its key gets what the request came to; what is
// stored is the answer of the one that has it now.
func TestRequest_that_overstays_its_lease_does_not_replace_an_answer(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open backend) {
		t.Helper()
		began, finish := make(chan struct{}), make(chan struct{})
		var s *service
		s = serve(t, open(), idempotency.Config{Timeout: time.Second}, func(w http.ResponseWriter, r *http.Request) {
			if s.runs.Load() == 1 {
				close(began)
				<-finish
			}
			created(w, r)
		})
		late := make(chan string)
		go func() {
			_, text := s.call(http.MethodPost, "/transfers?a=1", "a", key, "k")
			late <- text
		}()
		<-began
		var stored string
		bustest.Eventually(t, patience, func() error {
			answer, text := s.call(http.MethodPost, "/transfers?a=1", "a", key, "k")
			if answer.StatusCode != 201 {
				return errors.New(text)
			}
			stored = text
			return nil
		})
		close(finish)
		if text := <-late; text == stored {
			t.Error("the late one did not run")
		}
		if _, text := s.post("a", 201, "", key, "k"); text != stored {
			t.Errorf("%s, was %s", text, stored)
		}
	})
}

func TestNothing_runs_while_the_store_is_away(t *testing.T) {
	t.Parallel()
	db, store := openSQL(t, t.TempDir()+"/a.db")
	s := serve(t, store, idempotency.Config{}, created)
	must(t, db.Close())
	answer, _ := s.post("a", 503, "urn:farandole:problem:unavailable", key, "k")
	if answer.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	s.ran(0)
}

func TestConfig_says_all_that_is_wrong(t *testing.T) {
	t.Parallel()
	_, err := idempotency.New(nil, idempotency.Config{TTL: time.Minute, Timeout: time.Hour, MaxBody: -1})
	for _, want := range []string{"Scope is missing", "TTL 1m0s is shorter than Timeout 1h0m0s", "MaxBody -1"} {
		if !errors.Is(err, idempotency.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %s", err, want)
		}
	}
	if _, err := idempotency.New(nil, idempotency.Config{Scope: func(*http.Request) string { return "" }, TTL: 1}); !errors.Is(err, idempotency.ErrConfig) {
		t.Error(err)
	}
}
