package payment

import (
	"errors"

	"github.com/farandole/farandole/resilience"
)

var (
	// ErrConfig is returned by New when a setting is wrong.
	ErrConfig = errors.New("payment: configuration")
	// ErrNotReady is returned until Run has opened the service's bucket.
	ErrNotReady = errors.New("payment: not ready")
	// ErrGateway is matched by the error of every failed call to the gateway.
	ErrGateway = errors.New("payment: gateway")
	// ErrTimeout is matched when the gateway did not answer within Config.Timeout.
	// It is then unknown whether the gateway did what it was asked to.
	ErrTimeout = resilience.ErrTimeout
)
