package servable

import (
	"testing"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

func TestAModelThatIsWarmedUpCallsOthersAsTheServer(t *testing.T) {
	cfg, err := modelconfig.Parse("config.pbtxt", []byte(plain+sample))
	if err != nil {
		t.Fatal(err)
	}
	req, err := sampleRequest(cfg, cfg.Warmup[0], "")
	if err != nil {
		t.Fatal(err)
	}
	if req.Caller != access.Self {
		t.Errorf("the sample has the caller %q, want the server", req.Caller.Name())
	}
}
