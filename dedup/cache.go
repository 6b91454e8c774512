package dedup

// cache keeps documents as this process has stored them, so that a handler that reads
// one of them asks nobody. It holds a document as long as the partition of the event
// that changed it last is this process's, and as long as no change of the document is
// under way: after a batch whose answer got lost it is not there.
//
// What it holds may be old all the same, because anybody may write documents. That
// costs one more run of the handler: a step is stored only if the documents that it
// rests on are as they were read. A document that others have changed is shared, and
// is read from the server from then on. The group's mu guards a cache.
type cache struct {
	documents map[string]cached
	size      int
	shared    map[string]struct{}
}

// cached is a document, its revision in the stream, and who vouches for it.
type cached struct {
	tenure   *Tenure
	data     []byte
	revision uint64
}

const (
	// maxCached bounds how many documents a cache holds, and how many it knows to be
	// shared; maxCacheBytes bounds the size of what it holds.
	maxCached     = 4096
	maxCacheBytes = 16 << 20
)

func newCache() cache {
	return cache{documents: map[string]cached{}, shared: map[string]struct{}{}}
}

// put adds a document that is stored.
func (c *cache) put(subject string, d cached) {
	c.drop(subject)
	if _, shared := c.shared[subject]; shared || len(d.data) > maxCacheBytes {
		return
	}
	if len(c.documents) >= maxCached || c.size+len(d.data) > maxCacheBytes {
		clear(c.documents) // it only saves reads
		c.size = 0
	}
	c.documents[subject] = d
	c.size += len(d.data)
}

// get returns a document of a partition that is still this process's.
func (c *cache) get(subject string) (Document, bool) {
	d, ok := c.documents[subject]
	if !ok {
		return Document{}, false
	}
	select {
	case <-d.tenure.lost:
		c.drop(subject)
		return Document{}, false
	default:
		return Document{Data: d.data, Exists: true, Version: Version(d.revision)}, true
	}
}

// drop removes a document.
func (c *cache) drop(subject string) {
	c.size -= len(c.documents[subject].data)
	delete(c.documents, subject)
}

// share removes a document that others have changed, and does not take it in again.
func (c *cache) share(subject string) {
	c.drop(subject)
	if len(c.shared) >= maxCached {
		clear(c.shared) // a document costs one more run until it is known again
	}
	c.shared[subject] = struct{}{}
}
