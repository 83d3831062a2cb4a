package main

import (
	"bytes"
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/doctor"
)

func TestTheDoctorsReport(t *testing.T) {
	good := doctor.Finding{Check: "cores", Status: doctor.OK, Found: "2"}
	bad := doctor.Finding{Check: "model m", Status: doctor.Fail, Found: "nothing", Do: "fix it"}
	var out bytes.Buffer
	if err := report(&out, []doctor.Finding{good}, false); err != nil || out.String() != "ok    cores: 2\n" {
		t.Errorf("%v: %s", err, out.String())
	}
	out.Reset()
	third := doctor.Finding{Check: "model n", Status: doctor.Warn}
	if err := report(&out, []doctor.Finding{bad, third, {Check: "model o", Status: doctor.OK}}, false); err == nil ||
		!strings.HasSuffix(out.String(), "\n3 models: 2 can be served, 1 of them with warnings, and 1 cannot\n") {
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

func TestTheDoctorLooksAtThePortsOfTheServer(t *testing.T) {
	t.Setenv("SHOAL_GRPC_PORT", "0")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	text, status := shoal(t, "doctor", "../../examples/seed-device", "--http-port="+port, "--allow-metrics=false", "--exit-on-error=false")
	if status != 0 || !strings.Contains(text, "warn  http port: listen tcp 127.0.0.1:"+port) || !strings.Contains(text, "choose another with --http-port") ||
		!strings.Contains(text, "ok    grpc port: 127.0.0.1:0 is free") || strings.Contains(text, "metrics port") {
		t.Errorf("status %d:\n%s", status, text)
	}
	if text, status := shoal(t, "doctor", t.TempDir()); status != 1 || !strings.Contains(text, "fail  models: none found") {
		t.Errorf("status %d:\n%s", status, text)
	}
}
