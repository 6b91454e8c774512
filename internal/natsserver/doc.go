// Package natsserver starts a NATS server with JetStream inside this process.
//
// It is for the commands that bring their own server (demo, serve --embedded)
// and for tests. The server installs no signal handlers, listens on the
// loopback interface unless told otherwise, and holds an exclusive lock on its
// store directory, so that two servers never share one.
//
// Whoever starts a [Server] owns it and calls [Server.Stop], which returns
// only after the server's goroutines have ended.
package natsserver
