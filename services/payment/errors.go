package payment

import "errors"

var (
	// ErrConfig is returned by New when a setting is wrong.
	ErrConfig = errors.New("payment: configuration")
	// ErrNotReady is returned while the service has not opened its bucket.
	ErrNotReady = errors.New("payment: not ready")
	// ErrGateway is matched by every failure of a call to the gateway.
	ErrGateway = errors.New("payment: gateway")
	// ErrTimeout is matched when the gateway did not answer within Config.Timeout;
	// whether it did what it was asked to is then unknown.
	ErrTimeout = errors.New("payment: gateway timeout")
)
