package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/trace"
	"github.com/shoal-serving/shoal/internal/trace/otlp"
)

// traceFlag is Triton's flag for traces.
const traceFlag = "trace-config"

// A traceConfig says whether and how requests are traced.
type traceConfig struct {
	export   bool // traces are exported; otherwise requests are not traced
	settings trace.Settings
	otlp     otlp.Options
}

// defaultTraceURL is where Triton expects a collector.
const defaultTraceURL = "http://localhost:4318/v1/traces"

// readTraceConfig reads the values of the flag, as Triton does, and OpenTelemetry's variables of
// the environment. With variables only, every request is traced, unless they name another sampler,
// as OpenTelemetry's SDKs do it; with the flag, Triton's defaults apply.
func readTraceConfig(values []string, getenv func(string) string) (c traceConfig, err error) {
	endpoint := cmp.Or(getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	fromEnvironment := endpoint != "" && getenv("OTEL_TRACES_EXPORTER") != "none" && getenv("OTEL_SDK_DISABLED") != "true"
	c.settings = trace.Settings{Rate: 1000, Count: -1}
	if fromEnvironment {
		c.export, c.settings.On = true, true
		if c.settings.Rate, err = samplerRate(getenv("OTEL_TRACES_SAMPLER"), getenv("OTEL_TRACES_SAMPLER_ARG")); err != nil {
			return c, err
		}
	}
	mode := ""
	for _, value := range values {
		fail := func(expected string) error {
			return fmt.Errorf("--%s: %q is not valid: expected %s", traceFlag, value, expected)
		}
		of := ""
		for part := range strings.SplitSeq(value, ",") {
			name, text, ok := strings.Cut(part, "=")
			if !ok && of == "" {
				of = part
				continue
			}
			if !ok {
				return c, fail("SETTING=VALUE, or opentelemetry,SETTING=VALUE")
			}
			if name == "mode" {
				mode = text
			}
			if of == "triton" || name == "mode" && text == "triton" {
				return c, fail("mode=opentelemetry; traces in files are not supported: send them to a collector, which can write files")
			}
			if expected := c.set(name, text); expected != "" {
				return c, fail(expected)
			}
		}
		if of != "" && of != "opentelemetry" {
			return c, fail("opentelemetry,SETTING=VALUE")
		}
	}
	if len(values) > 0 && mode == "" && !fromEnvironment {
		return c, fmt.Errorf("--%s: no mode; add --%s mode=opentelemetry", traceFlag, traceFlag)
	}
	c.export = c.export || mode != ""
	if protocol := cmp.Or(getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), getenv("OTEL_EXPORTER_OTLP_PROTOCOL")); c.export && protocol != "" && protocol != "http/protobuf" {
		return c, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL: %q is not supported; expected http/protobuf, which collectors receive at port 4318", protocol)
	}
	if endpoint == "" {
		c.otlp.URL = cmp.Or(c.otlp.URL, defaultTraceURL)
	}
	return c, nil
}

// set sets one setting. It returns "", or what is expected instead of the text.
func (c *traceConfig) set(name, text string) (expected string) {
	number := func(low, high int64) (n int64) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < low || n > high {
			expected = fmt.Sprintf("%s=N with N from %d to %d", name, low, high)
		}
		return n
	}
	switch name {
	case "mode":
		if text != "opentelemetry" {
			return "mode=opentelemetry"
		}
	case "level":
		switch text {
		case "TIMESTAMPS", "MIN", "MAX":
			c.settings.On = true
		case "OFF":
			c.settings.On = false
		default:
			return "level=TIMESTAMPS or level=OFF; traces have no data of requests"
		}
	case "rate":
		c.settings.Rate = uint64(number(0, math.MaxUint32))
	case "count":
		c.settings.Count = number(-1, math.MaxInt32)
	case "url":
		c.otlp.URL = text
	case "resource":
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return "opentelemetry,resource=KEY=VALUE"
		}
		if c.otlp.Resource == nil {
			c.otlp.Resource = map[string]string{}
		}
		c.otlp.Resource[key] = value
	case "bsp_max_queue_size":
		c.otlp.QueueSize = int(number(1, math.MaxInt32))
	case "bsp_max_export_batch_size":
		c.otlp.BatchSize = int(number(1, math.MaxInt32))
	case "bsp_schedule_delay":
		c.otlp.Delay = time.Duration(number(1, math.MaxInt32)) * time.Millisecond
	default:
		return "one of the settings level, rate, count, mode, url, resource, bsp_max_queue_size, bsp_max_export_batch_size, bsp_schedule_delay"
	}
	return expected
}

// samplerRate returns the rate of a sampler of OpenTelemetry: one of how many requests is traced.
func samplerRate(name, argument string) (uint64, error) {
	switch strings.TrimPrefix(name, "parentbased_") {
	case "", "always_on":
		return 1, nil
	case "always_off":
		return 0, nil
	case "traceidratio":
		ratio, err := strconv.ParseFloat(cmp.Or(argument, "1"), 64)
		if err != nil || !(ratio >= 0 && ratio <= 1) {
			return 0, fmt.Errorf("OTEL_TRACES_SAMPLER_ARG: %q is not valid: expected a number from 0 to 1", argument)
		}
		if ratio < 1.0/math.MaxUint32 {
			return 0, nil
		}
		return uint64(math.Round(1 / ratio)), nil
	}
	return 0, fmt.Errorf("OTEL_TRACES_SAMPLER: %q is not supported; expected always_on, always_off or traceidratio, with or without parentbased_", name)
}

// openTracer returns what traces requests, and a function that sends the last spans. The tracer is
// nil if requests are not traced.
func openTracer(values []string, getenv func(string) string, log *slog.Logger) (*trace.Tracer, func(), error) {
	c, err := readTraceConfig(values, getenv)
	if err != nil || !c.export {
		return nil, func() {}, err
	}
	c.otlp.Version, c.otlp.Log = version, log
	exporter, err := otlp.New(context.Background(), c.otlp)
	if err != nil {
		return nil, nil, fmt.Errorf("--%s: %w", traceFlag, err)
	}
	return trace.New(exporter, c.settings), func() {
		ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
		defer cancel()
		if err := exporter.Close(ctx); err != nil {
			log.Warn("the last traces were not exported", "error", err)
		}
	}, nil
}

// flushTimeout is how long the server waits at its end for a collector that does not answer.
const flushTimeout = 2 * time.Second
