package main

import (
	"github.com/alecthomas/kong"
)

// cli is the command line. Each field is a command or a global flag.
type cli struct {
	Connection connection `embed:"" group:"connection"`
	LogLevel   string     `enum:",debug,info,warn,error,off" default:"" env:"FARANDOLE_LOG_LEVEL" placeholder:"LEVEL" help:"Least level logged to stderr: debug, info, warn, error or off. Default: warn; off for demo."`

	ShowVersion kong.VersionFlag `name:"version" help:"Print the version."`

	Demo        demoCmd        `cmd:"" help:"Run a whole system in this process, with injected faults, and audit it at the end."`
	Serve       serveCmd       `cmd:"" help:"Run services."`
	Topology    topologyCmd    `cmd:"" help:"Streams and buckets: show what differs from what is wanted, or change it."`
	Publish     publishCmd     `cmd:"" help:"Publish one event."`
	Tail        tailCmd        `cmd:"" help:"Follow events."`
	Webhook     webhookCmd     `cmd:"" help:"Deliver events to a URL, each as one HTTP POST."`
	Relay       relayCmd       `cmd:"" help:"Publish the events that services in any language write into an outbox."`
	DLQ         dlqCmd         `cmd:"" name:"dlq" help:"Dead letters: list, show, replay, discard."`
	Status      statusCmd      `cmd:"" help:"One screen: streams, consumers and who runs them, what waits, dead letters."`
	Metrics     metricsCmd     `cmd:"" help:"Serve where the system stands as Prometheus metrics."`
	Consumer    consumerCmd    `cmd:"" help:"Consumers: list, show, pause, resume, take event types out, delete."`
	Breaker     breakerCmd     `cmd:"" help:"Breakers that the processes of a consumer share: list, show, open, close."`
	Bench       benchCmd       `cmd:"" help:"Measure this server: hops a second, on streams of its own."`
	Healthcheck healthcheckCmd `cmd:"" help:"GET a URL; exit 0 if it answers 200, else 1."`
	Version     versionCmd     `cmd:"" help:"Print the version."`
}

// connectionGroup are the flags of a connection to NATS.
const connectionGroup = "connection"

var groups = []kong.Group{{Key: connectionGroup, Title: "Connection:"}}

// jsonFlag is embedded in every command that prints data.
type jsonFlag struct {
	JSON bool `name:"json" help:"Print JSON on stdout, for programs."`
}

// yesFlag is embedded in every command that destroys something.
type yesFlag struct {
	Yes bool `short:"y" help:"Do not ask."`
}

// misplaced refuses flags of a connection that were given to the demo, which has a server
// of its own. What the environment says of a connection is for the other commands.
func misplaced(command *kong.Context) error {
	if command.Command() != "demo" {
		return nil
	}
	for _, p := range command.Path {
		if p.Flag != nil && p.Flag.Group != nil && p.Flag.Group.Key == connectionGroup {
			return usageErrorf("demo: --%s does not apply: the demo runs a NATS server of its own", p.Flag.Name)
		}
	}
	return nil
}
