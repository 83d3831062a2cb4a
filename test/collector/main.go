// Command collector is an OpenTelemetry collector for the tests of traces: the collector's own
// receiver for OTLP over HTTP, and an exporter that appends what arrives to a file, as one line
// of OTLP's JSON for each message.
//
// It is a module of its own, so that the server does not depend on the collector's modules.
// The collector's exporter to files is not used: a module that it needs cannot be downloaded.
//
//	collector ADDRESS FILE
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: collector ADDRESS FILE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run collects until it gets a signal to end.
func run(address, name string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	var mu sync.Mutex // held while a line is written
	out, err := consumer.NewTraces(func(_ context.Context, all ptrace.Traces) error {
		line, err := (&ptrace.JSONMarshaler{}).MarshalTraces(all)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		_, err = file.Write(append(line, '\n'))
		return err
	})
	if err != nil {
		return err
	}
	otlp := otlpreceiver.NewFactory()
	settings := otlp.CreateDefaultConfig()
	endpoint := map[string]any{"protocols": map[string]any{"http": map[string]any{"endpoint": address}}}
	if err := confmap.NewFromStringMap(endpoint).Unmarshal(settings); err != nil {
		return err
	}
	in, err := otlp.CreateTraces(ctx, receiver.Settings{ID: component.NewID(otlp.Type()), TelemetrySettings: componenttest.NewNopTelemetrySettings()}, settings, out)
	if err != nil {
		return err
	}
	if err := in.Start(ctx, componenttest.NewNopHost()); err != nil {
		return err
	}
	fmt.Println("ready")
	<-ctx.Done()
	return in.Shutdown(context.WithoutCancel(ctx))
}
