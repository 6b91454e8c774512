package audit_test

import (
	"testing"

	"github.com/farandole/farandole/bustest"
)

func TestMain(m *testing.M) { bustest.Main(m) }
