package members_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/bustest"
	"github.com/farandole/farandole/consumer/internal/members"
	"github.com/farandole/farandole/event"
	"github.com/farandole/farandole/topology"
)

func TestMembersJoinAndEnd(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	a := s.member("a")
	balanced(t, a)
	b := s.member("")
	balanced(t, a, b)
	list, err := members.List(t.Context(), s.bus, payment)
	ids := []string{"a", b.ID()}
	slices.Sort(ids) // b's is made up, and may come before
	if err != nil || !slices.Equal(idsOf(list), ids) || list[0].Host == "" || time.Since(list[0].Since) > soon {
		t.Errorf("listed are %+v, %v", list, err)
	}
	a.stop()
	if err := <-a.done; err != nil {
		t.Errorf("run ended with %v", err)
	}
	if list, err := members.List(t.Context(), s.bus, payment); err != nil || len(list) != 1 {
		t.Errorf("after the end of a listed are %+v, %v", list, err)
	}
	balanced(t, b)
	if err := b.Err(); err != nil {
		t.Errorf("after all: %v", err)
	}
}

func TestMemberThatLeavesStaysUntilItHasEnded(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	a, b := s.member("a"), s.member("b")
	balanced(t, a, b)
	must(t, a.Leave(t.Context()))
	if v := a.View(); len(v.Own) > 0 || !v.Live("a") || !v.Live("b") {
		t.Errorf("a leaves, its view is %+v", v)
	}
	bustest.Eventually(t, soon, func() bool { return len(b.View().Own) == partitions })
	if v := b.View(); !v.Live("a") || !v.Members[0].Leaving || v.Live("c") {
		t.Errorf("a leaves, to b it is %+v", v)
	}
	a.stop()
	bustest.Eventually(t, soon, func() bool { return !b.View().Live("a") })
	if err := errors.Join(<-a.done, a.Leave(t.Context())); err != nil {
		t.Errorf("end after leaving: %v", err)
	}
	never := members.New(members.Config{Bus: s.bus, Consumer: payment, Partitions: partitions})
	if err := never.Leave(t.Context()); err != nil || never.View().Known {
		t.Errorf("one that never ran left with %v, its view is %+v", err, never.View())
	}
}

func TestChangesAreSignalled(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	a := s.member("a")
	for <-a.Changed(); !a.View().Known; <-a.Changed() {
	}
	b := s.member("b")
	for <-a.Changed(); !a.View().Live("b"); <-a.Changed() {
	}
	b.stop()
	for <-a.Changed(); a.View().Live("b"); <-a.Changed() {
	}
}

func TestPartitionsOfAMemberThatDiedGoToTheOthers(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	a, b, c := s.member("a"), s.member("b"), s.member("c")
	balanced(t, a, b, c)
	began := time.Now()
	b.kill()
	balanced(t, a, c)
	t.Logf("partitions moved after %v", time.Since(began).Round(time.Millisecond))
	c.kill()
	balanced(t, a)
}

func TestTenThatStartAtOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	connections := make([]*bus.Bus, 10)
	for i := range connections {
		connections[i] = s.connect()
	}
	began := time.Now()
	var all []*member
	for i, b := range connections {
		all = append(all, start(t, b, fmt.Sprint("m", i)))
	}
	balanced(t, all...)
	views := 0
	for _, m := range all {
		views += strings.Count(m.log.String(), "have changed")
	}
	t.Logf("balanced after %v and %d views", time.Since(began).Round(time.Millisecond), views)
}

func TestNothingMovesWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	a, b := s.member("a"), s.member("b")
	balanced(t, a, b)
	before := a.View()
	s.server.Stop(t)
	bustest.Eventually(t, soon, func() bool { return a.Err() != nil && b.Err() != nil })
	s.server.Restart(t)
	bustest.Eventually(t, soon, func() bool { return a.Err() == nil && b.Err() == nil })
	c := s.member("c")
	balanced(t, a, b, c)
	c.stop()
	balanced(t, a, b)
	if got := a.View(); len(got.Own) != len(before.Own) {
		t.Errorf("a owns %v, before %v", got.Own, before.Own)
	}
	for _, m := range []*member{a, b} { // alone, both, c came and went
		if n := strings.Count(m.log.String(), "have changed"); n > 4 {
			t.Errorf("%s changed its view %d times", m.ID(), n)
		}
	}
}

func TestBucketThatIsMadeLate(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	bucket := "KV_" + s.names.Bucket("members")
	must(t, s.bus.JetStream().DeleteStream(t.Context(), bucket))
	a := s.member("a")
	bustest.Eventually(t, soon, func() bool {
		return a.Err() != nil && strings.Contains(a.Err().Error(), "run `farandole topology apply`")
	})
	if v := a.View(); v.Known || len(v.Own) > 0 {
		t.Errorf("without a bucket the view is %+v", v)
	}
	if _, err := members.List(t.Context(), s.bus, payment); !errors.Is(err, bus.ErrNoStream) || !strings.Contains(err.Error(), "topology apply") {
		t.Errorf("list without a bucket: %v", err)
	}
	s.provision()
	balanced(t, a)
	bustest.Eventually(t, soon, func() bool { return a.Err() == nil })
}

func TestBucketThatIsMadeAnew(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	a, b := s.member("a"), s.member("b")
	balanced(t, a, b)
	must(t, s.bus.JetStream().DeleteStream(t.Context(), "KV_"+s.names.Bucket("members")))
	s.provision()
	c := s.member("c")
	balanced(t, a, b, c)
	for _, m := range []*member{a, b, c} {
		bustest.Eventually(t, soon, func() bool { return m.Err() == nil })
	}
}

func TestBucketThatIsEmptied(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	a, b := s.member("a"), s.member("b")
	balanced(t, a, b)
	stream, err := s.bus.JetStream().Stream(t.Context(), "KV_"+s.names.Bucket("members"))
	must(t, err)
	b.kill()
	must(t, stream.Purge(t.Context())) // nothing is left that the server could tell the end of
	balanced(t, a)
}

func TestBucketThatKeepsItsKeysIsRefused(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	name := s.names.Bucket("members")
	must(t, s.bus.JetStream().DeleteKeyValue(t.Context(), name))
	_, err := s.bus.JetStream().CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: name})
	must(t, err)
	a := s.member("a")
	bustest.Eventually(t, soon, func() bool { return a.Err() != nil && strings.Contains(a.Err().Error(), "max_age") })
}

func TestIDThatIsNoTokenIsRefused(t *testing.T) {
	t.Parallel()
	g := members.New(members.Config{Bus: bustest.NewBus(t), Consumer: payment, ID: "a.b", Partitions: partitions})
	if err := g.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "a.b") {
		t.Errorf("run: %v", err)
	}
}

func TestNothingMovesWhenTheBucketChangesItsLeader(t *testing.T) {
	t.Parallel()
	servers := bustest.StartCluster(t, 3)
	var urls []string
	for _, s := range servers {
		urls = append(urls, s.URL())
	}
	names := event.Names{Prefix: bustest.Prefix()}
	connect := func() *bus.Bus { return bustest.Connect(t, bus.Config{URL: strings.Join(urls, ","), Names: names}) }
	b := connect()
	_, err := topology.Provision(t.Context(), b, topology.New(names, topology.Config{Replicas: 3}))
	must(t, err)
	all := []*member{start(t, connect(), "a"), start(t, connect(), "b"), start(t, connect(), "c")}
	balanced(t, all...)
	views := func() (n int) {
		for _, m := range all {
			n += strings.Count(m.log.String(), "have changed")
		}
		return n
	}
	before := views()
	stream, err := b.Stream(t.Context(), "KV_"+names.Bucket("members"))
	must(t, err)
	name := stream.CachedInfo().Cluster.Leader // ends in the server's number
	leader := servers[name[len(name)-1]-'1']
	leader.Stop(t)
	d := start(t, connect(), "d") // is seen as soon as all is well again
	balanced(t, append(all, d)...)
	leader.Restart(t)
	if n := views() - before; n != len(all) {
		t.Errorf("%d views since the leader was stopped, want one each for the member that came", n)
	}
}
