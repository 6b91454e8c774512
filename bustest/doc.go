// Package bustest is the test kit for services on the bus: an embedded NATS
// server with JetStream, and buses on it that do not see each other.
//
// A test package declares
//
//	func TestMain(m *testing.M) { bustest.Main(m) }
//
// and its tests call [NewBus]. One server a test binary is started when the
// first test asks for it; [Main] stops it and reports leaked goroutines. A test
// that has to stop or reconfigure its server starts its own with [StartServer].
//
// Without a server, [Handle] runs one handler, and [World] several services with their
// retries and timers, in virtual time.
//
// This package imports nats-server: import it from tests only.
package bustest
