package dedup

import "github.com/nats-io/nats.go"

// tip is the newest state of a document that is not committed yet. Later steps
// build on it, and several of its states in a row are committed as one write.
type tip struct {
	version Version
	data    []byte
	deletes bool
	base    uint64 // the document's revision in the stream
	open    int    // accesses whose steps have not ended
	broken  bool   // one of them failed: the steps of the others fail, too
}

// current reports whether an access is based on the newest state of its
// document, as far as this process knows it. The caller holds g.mu.
func (g *group) current(a *access) bool {
	if t := g.tips[a.subject]; t != nil {
		return !t.broken && t.version == a.based
	}
	return !a.based.staged() && uint64(a.based) >= g.known[a.subject].revision
}

// sighting is what this process knows of a stored document.
type sighting struct {
	revision uint64
	whole    bool // all of the step that wrote it is stored
}

// learn notes the revision of a document, as the stream's leader tells it.
func (g *group) learn(subject string, s sighting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.known) >= maxKnown {
		clear(g.known) // they only save a question
	}
	if before := g.known[subject]; before.revision == s.revision {
		s.whole = s.whole || before.whole
	}
	g.known[subject] = s
}

// moved notes that others have changed a document.
func (g *group) moved(subject string, revision uint64) {
	g.learn(subject, sighting{revision: revision})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cache.share(subject)
}

// behind reports whether a revision of a document is older than one that this
// process knows of.
func (g *group) behind(subject string, revision uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return revision < g.known[subject].revision
}

// trusts reports whether this process knows a revision of a document to be whole.
func (g *group) trusts(subject string, revision uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.known[subject] == sighting{revision, true}
}

// stage makes an access part of its document's tip. The caller holds g.mu.
func (g *group) stage(a *access) {
	t := g.tips[a.subject]
	if a.keeps {
		t.open++
		a.tip = t
		return
	}
	if t == nil {
		t = &tip{base: uint64(a.based)}
		g.tips[a.subject] = t
	}
	g.cache.drop(a.subject)
	g.serial++
	t.version = firstStaged + g.serial
	t.data, t.deletes = a.data, a.deletes
	t.open++
	a.tip = t
}

// remember puts a document that is stored into the cache, unless a later change of it is
// under way. The caller holds g.mu.
func (g *group) remember(a *access, t *Tenure) {
	if a.deletes || g.tips[a.subject] != nil {
		g.cache.drop(a.subject)
		return
	}
	g.cache.put(a.subject, cached{tenure: t, data: a.data, revision: a.tip.base})
}

// leave takes an access out of its document's tip. The caller holds g.mu.
func (g *group) leave(a *access) {
	if a.tip.open--; a.tip.open == 0 && g.tips[a.subject] == a.tip {
		delete(g.tips, a.subject)
	}
}

// breakOff makes the tips of documents that others have written invalid.
func (g *group) breakOff(steps []*step, moved map[string]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range steps {
		for a := range s.writes {
			a.tip.broken = a.tip.broken || moved[a.subject]
		}
	}
}

// abandon takes back what a step would have written. The caller holds g.mu.
func (g *group) abandon(s *step) {
	for _, a := range s.docs {
		a.tip.broken = a.tip.broken || !a.keeps
		g.leave(a)
	}
}

// documents returns one message for each document that the steps write: its last
// state, following the revision that the first step has read.
func (g *group) documents(steps []*step) (subjects []string, msgs []*nats.Msg) {
	g.mu.Lock()
	defer g.mu.Unlock()
	index := map[string]int{}
	for _, s := range steps {
		for a := range s.writes {
			i, again := index[a.subject]
			if !again {
				i = len(msgs)
				index[a.subject] = i
				subjects = append(subjects, a.subject)
				msgs = append(msgs, nil)
			}
			msgs[i] = a.message(a.tip.base, g.marks.signature(s.tenure))
		}
	}
	return subjects, msgs
}

// bases returns the revision that each document of the steps follows, by subject.
func (g *group) bases(steps []*step) map[string]uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	bases := map[string]uint64{}
	for _, s := range steps {
		for a := range s.writes {
			bases[a.subject] = a.tip.base
		}
	}
	return bases
}

// peek returns the newest state of a document that this process knows: one that is not
// committed yet, or a cached one.
func (g *group) peek(subject string) (Document, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.tips[subject]
	if t == nil {
		return g.cache.get(subject)
	}
	if t.broken {
		return Document{}, false
	}
	return Document{Data: t.data, Version: t.version, Exists: !t.deletes}, true
}
