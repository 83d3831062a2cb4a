package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/shoal-serving/shoal/internal/doctor"
)

func TestTheDoctorsReport(t *testing.T) {
	good := doctor.Finding{Check: "cores", Status: doctor.OK, Found: "2"}
	bad := doctor.Finding{Check: "model m", Status: doctor.Fail, Found: "nothing", Do: "mend it"}
	var out bytes.Buffer
	if err := report(&out, []doctor.Finding{good}, false); err != nil || out.String() != "ok    cores: 2\n" {
		t.Errorf("%v: %s", err, out.String())
	}
	for _, asJSON := range []bool{false, true} {
		out.Reset()
		if err := report(&out, []doctor.Finding{good, bad}, asJSON); err == nil || err.Error() != "1 of 2 checks failed" {
			t.Errorf("json %t: %v", asJSON, err)
		}
		if !asJSON {
			continue
		}
		var read []doctor.Finding
		if err := json.Unmarshal(out.Bytes(), &read); err != nil || !slices.Equal(read, []doctor.Finding{good, bad}) {
			t.Errorf("%v: %s", err, out.String())
		}
	}
}
