package dlq

import "testing"

func TestNormalise_replaces_what_varies(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                "",
		"gateway timeout": "gateway timeout",
		`type: "order.placed.v1" on subject "events.order.cancelled.v12.5.ord-7"`: `type: "order.placed.v1" on subject <str>`,
		"no handler for com.acme.order.placed.v1, 3 of them":                      "no handler for com.acme.order.placed.v1, <n> of them",
		"on events.order.placed.v1.22.ord-7f3a":                                   "on events.order.placed.v1.<n>.ord-<id>",
		"timeout after 1532 ms":                                                   "timeout after <n> ms",
		"timeout after 1.5s":                                                      "timeout after <n>.<id>",
		"dial tcp 10.0.0.7:4222: refused":                                         "dial tcp <n>.<n>.<n>.<n>:<n>: refused",
		"order ord-7f3a not found":                                                "order ord-<id> not found",
		`order ord-7f3a: sku "anvil" not found after 3 tries`:                     "order ord-<id>: sku <str> not found after <n> tries",
		`unknown sku "uni \"corn\" x"`:                                            "unknown sku <str>",
		"can't read 'it' and don't":                                               "can't read <str> and don't",
		"at 0xC000123456":                                                         "at <hex>",
		"commit 9fceb02d0ae598e95dc":                                              "commit <hex>",
		"a\r\n  b\tc":                                                             "a b c",
		"id 3F2504E0-4F89-41D3-9A0C-0305E82C3301 gone":                            "id <uuid> gone",
	} {
		if got := normalise(in); got != want {
			t.Errorf("normalise(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestFingerprint_groups_by_class_text_and_type(t *testing.T) {
	t.Parallel()
	base := fingerprint("timeout", "order 17 late", "order.placed.v1")
	if len(base) != 12 {
		t.Errorf("fingerprint %q", base)
	}
	if fingerprint("timeout", "order 9999 late", "order.placed.v1") != base {
		t.Error("a number made another group")
	}
	for _, other := range []string{
		fingerprint("refused", "order 17 late", "order.placed.v1"),
		fingerprint("timeout", "order 17 lost", "order.placed.v1"),
		fingerprint("timeout", "order 17 late", "order.cancelled.v1"),
	} {
		if other == base {
			t.Error("different failures share a fingerprint")
		}
	}
}
