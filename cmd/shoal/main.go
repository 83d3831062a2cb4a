// Command shoal serves models: many small requests go in, few large batches go
// to the model. See "shoal help".
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is the release that this is on the way to.
const version = "0.2.0-dev"

func main() {
	// The first signal ends things in order. From then on signals do what they do
	// to any program, so that a second one ends it at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := newRootCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "shoal:", err)
		os.Exit(exitStatus(err))
	}
}

// A misuse is an error in what was asked for, and not in doing it.
type misuse struct{ error }

func (m misuse) Unwrap() error { return m.error }

func exitStatus(err error) int {
	if _, ok := errors.AsType[misuse](err); ok {
		return 2
	}
	return 1
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "shoal",
		Short:         "Shoal serves models: many small requests in, few large batches to the model.",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newServeCommand(), newSimulateCommand(), newBenchCommand(), newExplainCommand(), newDoctorCommand())
	return root
}
