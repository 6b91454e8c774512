package events_test

import (
	"testing"

	"github.com/farandole/farandole/services/events"
)

func TestMinorDigits(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]int{"EUR": 2, "AED": 2, "XAD": 2, "ZWG": 2, "JPY": 0, "BIF": 0, "XPF": 0, "KWD": 3, "TND": 3, "CLF": 4, "UYW": 4} {
		if digits, ok := events.MinorDigits(code); !ok || digits != want {
			t.Errorf("%s: %d, %t; want %d", code, digits, ok, want)
		}
	}
	for _, code := range []string{"", "E", "EU", "eur", "EURO", "ABC", "XXX", "XTS", "XAU", "DEM", "R U", "D A", " EU", "€", "EUR AED"} {
		if digits, ok := events.MinorDigits(code); ok {
			t.Errorf("%q: %d digits, want unknown", code, digits)
		}
	}
}
