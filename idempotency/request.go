package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"net/http"
	"strings"

	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/internal/web"
)

// Header is the name of the request header.
const Header = "Idempotency-Key"

// maxKey is how many bytes a key may have.
const maxKey = 255

type idKey struct{}

// ID names the request that a handler behind the middleware carries out: the same
// scope, key and content always have the same name, 52 characters of [a-z2-7]. It is
// empty for a request that did not come through the middleware.
func ID(ctx context.Context) string {
	id, _ := ctx.Value(idKey{}).(string)
	return id
}

// keyOf reads the key: a string of RFC 8941, or the bare text.
func keyOf(h http.Header) (key string, ok bool) {
	values := h.Values(Header)
	if len(values) != 1 {
		return "", false
	}
	key = strings.TrimSpace(values[0])
	if strings.HasPrefix(key, `"`) {
		if key, ok = unquote(key); !ok {
			return "", false
		}
	}
	return key, key != "" && len(key) <= maxKey
}

// unquote reads a string of RFC 8941 and ignores the parameters behind it.
func unquote(quoted string) (string, bool) {
	var text strings.Builder
	for i := 1; i < len(quoted); i++ {
		switch c := quoted[i]; {
		case c == '"':
			rest := strings.TrimSpace(quoted[i+1:])
			return text.String(), rest == "" || rest[0] == ';'
		case c == '\\':
			if i++; i == len(quoted) || quoted[i] != '"' && quoted[i] != '\\' {
				return "", false
			}
			text.WriteByte(quoted[i])
		case c < ' ' || c > '~':
			return "", false
		default:
			text.WriteByte(c)
		}
	}
	return "", false
}

// fingerprint tells a request from others with the same key.
func fingerprint(r *http.Request, body []byte) string {
	contentType := r.Header.Get("Content-Type")
	if web.MayBeJSON(contentType) {
		if id, err := event.ContentID(body); err == nil {
			return hash(r.Method, r.URL.RequestURI(), "json", id)
		}
	}
	return hash(r.Method, r.URL.RequestURI(), contentType, string(body))
}

// hash is 52 characters of [a-z2-7] that different parts do not share.
func hash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(p)))
		h.Write(size[:])
		h.Write([]byte(p))
	}
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil)))
}
