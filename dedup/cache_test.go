package dedup

import (
	"fmt"
	"testing"
)

func TestCache_is_bounded(t *testing.T) {
	t.Parallel()
	c, owner := newCache(), &Tenure{lost: make(chan struct{})}
	for i := range 2*maxCached + 1 {
		c.put(fmt.Sprint("small-", i), cached{tenure: owner, data: []byte("x"), revision: 1})
		c.share(fmt.Sprint("shared-", i))
	}
	if len(c.documents) > maxCached || len(c.shared) > maxCached || c.size != len(c.documents) {
		t.Errorf("%d documents of %d bytes, %d shared", len(c.documents), c.size, len(c.shared))
	}
	large := make([]byte, maxCacheBytes/4)
	for i := range 10 {
		c.put(fmt.Sprint("large-", i), cached{tenure: owner, data: large, revision: 1})
		c.put("again", cached{tenure: owner, data: large[:i], revision: 1})
		if _, ok := c.get("again"); !ok || c.size > maxCacheBytes {
			t.Fatalf("%d bytes, the last document is there: %v", c.size, ok)
		}
	}
	if c.put("giant", cached{tenure: owner, data: make([]byte, maxCacheBytes+1)}); c.documents["giant"].tenure != nil {
		t.Error("it holds a document that is larger than all it may hold")
	}
}
