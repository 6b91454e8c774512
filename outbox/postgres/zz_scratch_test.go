package postgres_test

import (
	"os"
	"testing"

	"github.com/farandole/farandole/outbox/outboxtest"
)

func BenchmarkScratch(b *testing.B) { outboxtest.Bench(b, factory(), os.Getenv("SCRATCH_PG")) }
