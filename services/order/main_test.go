package order

import (
	"flag"
	"testing"

	"github.com/farandole/farandole/bustest"
)

// TestMain lets more tests run at once than there are processors, unless told
// otherwise: they wait for deliveries most of the time.
func TestMain(m *testing.M) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", "4"); err != nil {
			panic(err)
		}
	}
	bustest.Main(m)
}
