// Package event is the event model and its form on the wire: CloudEvents on
// JetStream subjects. It holds no connection.
//
// # Role
//
// A [Definition] ties an event type to the Go type of its data and makes a
// [Draft]; sealing a draft gives an [Event], a CloudEvent 1.0 from
// cloudevents/sdk-go. [Encode], [EncodeStructured] and [Decode] are the
// CloudEvents NATS protocol binding in binary and structured mode. [Names] makes
// every subject, stream and bucket name of one system.
//
// # Guarantees
//
//   - Data bytes are identical to the last bit after encoding and decoding.
//   - What [Encode] accepts [Decode] reads, and nothing is encoded that is no
//     valid CloudEvent.
//   - An [EventKey] depends on the event's source and id alone.
package event
