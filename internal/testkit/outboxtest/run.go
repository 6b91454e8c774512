package outboxtest

import (
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/farandole/farandole/bus"
	"github.com/farandole/farandole/topology"
)

// Run runs the suite of the relay as subtests of t, in parallel. It starts its
// test again in processes of their own: t's name must be that of a function, and
// the test must do nothing else.
func Run(t *testing.T, f Factory) {
	t.Helper()
	if doAssigned(t, f) {
		return
	}
	t.Parallel()
	own := func(*server.Options) {}
	small := place{tune: payload(smallPayload)}
	login := place{tune: users(nil), bus: bus.Config{User: "relay", Password: "secret", PublishTimeout: publishTimeout}}
	for name, test := range map[string]struct {
		place place
		run   func(*rig)
	}{
		"a relay killed before it marks, duplicate window 2 min": {place{}, killedBeforeMark(1)},
		"a relay killed before it marks, duplicate window 1 s": {
			place{topology: topology.Config{Duplicates: shortWindow}}, killedBeforeMark(2),
		},
		"nats down":                                     {login, unavailable(bus.ErrUnavailable, natsDown)},
		"no stream":                                     {login, unavailable(bus.ErrNoStream, noStream)},
		"permission denied":                             {login, unavailable(bus.ErrDenied, denied)},
		"a stream without acknowledgements":             {login, unavailable(bus.ErrUnavailable, noAck)},
		"a responder in place of a stream":              {login, unavailable(bus.ErrNoStream, responder)},
		"a lower id commits later":                      {place{}, lateCommit},
		"twenty writers, some roll back":                {place{}, manyWriters},
		"idle transactions":                             {place{}, idleTransactions},
		"a relay killed with 50 claims":                 {place{}, killedWithClaims},
		"a relay stopped past its lease":                {place{}, stopped},
		"unsendable rows at the head":                   {small, unsendable},
		"clean-up":                                      {place{}, cleanUp},
		"a parked row that is replayed":                 {small, replayedRow},
		"replays that are taken back beside a relay":    {place{}, takenBackBesideRelay},
		"a failing row holds back its key and no other": {small, failingRow},
		"order through restarts and takeovers":          {place{}, restarts},
		"an outage while writers are busy":              {place{tune: own}, outage},
		"a restored database":                           {place{}, restored},
		"marks of a stale owner affect nothing":         {place{}, staleOwner},
		"a relay is woken":                              {place{}, woken},
		"a relay that ends gives back what it holds":    {place{}, ends},
		"rows that fall due while a relay looks":        {place{}, fallingDue},
		"rows larger than a batch has memory for":       {place{}, largeRows},
		"rows that command the server":                  {place{}, commands},
		"timers are rows of steps":                      {place{}, timersOfSteps},
		"timers without their stream":                   {place{}, withoutTimers},
		"a subject without a stream":                    {place{}, nowhere(false)},
		"a subject that somebody hears but no stream":   {place{bus: bus.Config{PublishTimeout: publishTimeout}}, nowhere(true)},
		"a message id that the stream knows":            {place{}, takenIDs},
		"types that a relay is not for":                 {place{}, otherTypes},
		"times that no relay sets":                      {place{}, absurdTimes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.run(newRig(t, f, test.place))
		})
	}
}
