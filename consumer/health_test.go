package consumer

import (
	"errors"
	"io"
	"testing"
)

func TestHealthFadesUnlessReportedAgain(t *testing.T) {
	t.Parallel()
	h := &health{fade: minFade}
	h.set("dlq", io.EOF)
	h.set("ledger", io.ErrUnexpectedEOF)
	at := h.by["dlq"].at
	err := h.err(at)
	if !errors.Is(err, ErrUnhealthy) || !errors.Is(err, io.EOF) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("err = %v, want both parts", err)
	}
	h.clear("ledger")
	if err := h.err(at); !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("err = %v, want what is left", err)
	}
	if err := h.err(at.Add(minFade)); err != nil {
		t.Errorf("err = %v after the fade, want nil", err)
	}
	h.clear("dlq")
	if err := h.err(at); err != nil || h.sick.Load() {
		t.Errorf("err = %v after everything was cleared", err)
	}
}
