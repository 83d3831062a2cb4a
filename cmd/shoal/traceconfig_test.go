package main

import (
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/trace"
)

func TestTracesAreConfiguredAsInTritonOrByTheEnvironment(t *testing.T) {
	off := trace.Settings{Rate: 1000, Count: -1}
	for _, c := range []struct {
		name, flags, environment string
		export                   bool
		settings                 trace.Settings
		url                      string // "" means that the environment has it
	}{
		{"nothing", "", "", false, off, defaultTraceURL},
		{"a mode", "mode=opentelemetry", "", true, off, defaultTraceURL},
		{
			"Triton's documentation", "mode=opentelemetry level=TIMESTAMPS rate=100 count=20 opentelemetry,url=collector:4318/v1/traces", "",
			true,
			trace.Settings{On: true, Rate: 100, Count: 20},
			"collector:4318/v1/traces",
		},
		{"all in one", "mode=opentelemetry,level=TIMESTAMPS,rate=0,url=c:1", "", true, trace.Settings{On: true, Rate: 0, Count: -1}, "c:1"},
		{"the environment", "", "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", true, trace.Settings{On: true, Rate: 1, Count: -1}, ""},
		{
			"its sampler", "", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://c:4318 OTEL_TRACES_SAMPLER=parentbased_traceidratio OTEL_TRACES_SAMPLER_ARG=0.01",
			true,
			trace.Settings{On: true, Rate: 100, Count: -1},
			"",
		},
		{"no sampler", "", "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318 OTEL_TRACES_SAMPLER=always_off", true, trace.Settings{On: true, Count: -1}, ""},
		{"both", "rate=7", "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", true, trace.Settings{On: true, Rate: 7, Count: -1}, ""},
		{"no exporter", "", "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318 OTEL_TRACES_EXPORTER=none", false, off, ""},
		{"disabled", "", "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318 OTEL_SDK_DISABLED=true", false, off, ""},
	} {
		got, err := readTraceConfig(strings.Fields(c.flags), variables(c.environment))
		if err != nil || got.export != c.export || got.settings != c.settings || got.otlp.URL != c.url {
			t.Errorf("%s: %+v and %v, want %t, %+v and %q", c.name, got, err, c.export, c.settings, c.url)
		}
	}
	got, err := readTraceConfig([]string{
		"mode=opentelemetry", "opentelemetry,resource=service.name=mine", "opentelemetry,resource=a=b=c",
		"opentelemetry,bsp_max_queue_size=9", "opentelemetry,bsp_max_export_batch_size=5", "opentelemetry,bsp_schedule_delay=70",
	}, variables(""))
	if o := got.otlp; err != nil || o.Resource["service.name"] != "mine" || o.Resource["a"] != "b=c" || o.QueueSize != 9 || o.BatchSize != 5 || o.Delay != 70*time.Millisecond {
		t.Errorf("got %+v and %v", o, err)
	}
}

func TestTracesThatCannotBeAreRefusedAtTheStart(t *testing.T) {
	for _, c := range []struct{ flags, environment, want string }{
		{"rate=10", "", "--trace-config: no mode; add --trace-config mode=opentelemetry"},
		{"mode=triton", "", "traces in files are not supported"},
		{"triton,file=/tmp/trace.json", "", "traces in files are not supported"},
		{"jaeger,url=x", "", `"jaeger,url=x" is not valid: expected opentelemetry,SETTING=VALUE`},
		{"mode=zipkin", "", "expected mode=opentelemetry"},
		{"mode=opentelemetry level=TENSORS", "", "expected level=TIMESTAMPS or level=OFF"},
		{"mode=opentelemetry rate=-1", "", "expected rate=N with N from 0 to 4294967295"},
		{"mode=opentelemetry count=x", "", "expected count=N"},
		{"mode=opentelemetry opentelemetry,resource=x", "", "expected opentelemetry,resource=KEY=VALUE"},
		{"mode=opentelemetry opentelemetry,bsp=1", "", "expected one of the settings"},
		{"mode=opentelemetry,x", "", "expected opentelemetry,SETTING=VALUE"},
		{"mode=opentelemetry", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "expected http/protobuf"},
		{"", "OTEL_EXPORTER_OTLP_ENDPOINT=http://c OTEL_TRACES_SAMPLER=jaeger_remote", "OTEL_TRACES_SAMPLER"},
		{"", "OTEL_EXPORTER_OTLP_ENDPOINT=http://c OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=2", "expected a number from 0 to 1"},
	} {
		_, err := readTraceConfig(strings.Fields(c.flags), variables(c.environment))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %q", c.flags, c.environment, err, c.want)
		}
	}
}

// variables returns the variables of a text such as A=1 B=2.
func variables(text string) func(string) string {
	return func(wanted string) string {
		for pair := range strings.FieldsSeq(text) {
			if name, value, _ := strings.Cut(pair, "="); name == wanted {
				return value
			}
		}
		return ""
	}
}
