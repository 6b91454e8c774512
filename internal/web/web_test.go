package web_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/farandole/farandole/internal/web"
)

type document struct {
	Name  string `json:"name"`
	Items []struct {
		Quantity int64   `json:"quantity"`
		Weight   float64 `json:"weight"`
		Gift     *bool   `json:"gift"`
	} `json:"items"`
}

func TestWrong_body_is_told_by_a_pointer_and_without_the_words_of_Go(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		contentType, body string
		status            int
		pointer, says     string
	}{
		"string for a number": {"application/json", `{"items":[{"quantity":1},{"quantity":"2"}]}`, 400, "#/items/1/quantity", "items/1/quantity must be a whole number of 64 bits"},
		"fraction":            {"", `{"items":[{"quantity":1.5}]}`, 400, "#/items/0/quantity", "whole number"},
		"overflow":            {"", `{"items":[{"quantity":9223372036854775808}]}`, 400, "#/items/0/quantity", "whole number"},
		"number for a string": {"application/json; charset=UTF-8", `{"name":1}`, 400, "#/name", "name must be a string"},
		"string for a bool":   {"", `{"items":[{"gift":"yes"}]}`, 400, "#/items/0/gift", "true or false"},
		"array for an object": {"", `[]`, 400, "#", "it must be an object"},
		"object for an array": {"", `{"items":{}}`, 400, "#/items", "an array"},
		"unknown member":      {"", `{"items":[{"weight":1,"colour":"red"}]}`, 400, "#/items/0/colour", "is no member"},
		"name in other case":  {"", `{"Name":"a"}`, 400, "#/Name", "is no member"},
		"name to be escaped":  {"", `{"a b/c":1}`, 400, "#/a%20b~1c", "is no member"},
		"repeated member":     {"", `{"name":"a","name":"b"}`, 400, "#/name", "is there twice"},
		"not UTF-8":           {"", "{\"name\":\"\xff\"}", 400, "#", "UTF-8"},
		"no JSON":             {"", `name=a`, 400, "#", "not JSON"},
		"half of it":          {"", `{"name":`, 400, "#", "JSON"},
		"two documents":       {"", `{} {}`, 400, "#", "one document"},
		"nothing":             {"", ` `, 400, "#", "it is empty"},
		"a form":              {"application/x-www-form-urlencoded", `name=a`, 400, "#", "not JSON"},
		"text":                {"text/plain", `{}`, 415, "", "application/json"},
		"another charset":     {"application/json; charset=latin1", `{}`, 415, "", "application/json"},
		"too large":           {"", `{"name":"` + strings.Repeat("a", 100) + `"}`, 413, "", "100 bytes"},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(tt.body))
		r.Header.Set("Content-Type", tt.contentType)
		var d document
		p := web.ReadJSON(w, r, 100, &d)
		if p == nil {
			t.Errorf("%s: accepted as %+v", name, d)
			continue
		}
		p.Write(w)
		var got web.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %v: %s", name, err, w.Body)
		}
		pointer := ""
		if len(got.Errors) > 0 {
			pointer = got.Errors[0].Pointer
		}
		if w.Code != tt.status || got.Status != tt.status || pointer != tt.pointer || !strings.Contains(got.Detail, tt.says) || got.Title == "" {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		for _, word := range []string{"json:", "Go ", "int64", "unmarshal", "struct", "document."} {
			if strings.Contains(w.Body.String(), word+" ") {
				t.Errorf("%s: tells of the program: %s", name, w.Body)
			}
		}
	}
}

func TestBody_can_be_read_once_more(t *testing.T) {
	t.Parallel()
	for _, contentType := range []string{"", "application/json", "Application/JSON;charset=utf-8", "application/merge-patch+json"} {
		const body = `{"name":"a","items":[{"quantity":2,"gift":true}]}`
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		var d document
		if p := web.ReadJSON(httptest.NewRecorder(), r, 100, &d); p != nil || d.Name != "a" || d.Items[0].Quantity != 2 || !*d.Items[0].Gift {
			t.Fatalf("%s: %+v, %+v", contentType, p, d)
		}
		if again, err := io.ReadAll(r.Body); err != nil || string(again) != body {
			t.Errorf("%s: %v: %s", contentType, err, again)
		}
	}
}

func TestUnknown_paths_and_methods_are_problem_documents(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /a", func(w http.ResponseWriter, _ *http.Request) { web.WriteJSON(w, http.StatusOK, 1) })
	for _, tt := range []struct {
		method, path  string
		status        int
		allow, result string
	}{
		{"GET", "/a", 200, "", "1\n"},
		{"GET", "/b", 404, "", `"type":"urn:farandole:problem:not-found","title":"Not found"`},
		{"POST", "/a", 405, "GET, HEAD", `"type":"urn:farandole:problem:method-not-allowed"`},
	} {
		w := httptest.NewRecorder()
		web.Problems(mux).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), tt.method, tt.path, nil))
		if w.Code != tt.status || w.Header().Get("Allow") != tt.allow || !strings.Contains(w.Body.String(), tt.result) {
			t.Errorf("%s %s: %d %v %s", tt.method, tt.path, w.Code, w.Header(), w.Body)
		}
	}
}
