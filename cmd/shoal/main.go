// Command shoal serves models: many small requests go in, few large batches go
// to the model. See "shoal help".
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is the release that this is on the way to.
const version = "0.2.0-dev"

func main() {
	// The first signal starts an orderly shutdown and restores the default handling of
	// signals, so that a second one ends the process immediately.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Exit statuses of every command.
const (
	exitOK     = 0
	exitFailed = 1 // the command could not do what was asked
	exitMisuse = 2 // wrong flags or arguments; nothing was done
)

// execute runs a command line, and returns its exit status.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	_, _ = fmt.Fprintln(stderr, "shoal:", err) // the exit status says that there was an error
	return exitStatus(err)
}

// A misuse is an error in what was asked for, and not in doing it.
type misuse struct{ error }

func (m misuse) Unwrap() error { return m.error }

func exitStatus(err error) int {
	if _, ok := errors.AsType[misuse](err); ok {
		return exitMisuse
	}
	return exitFailed
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "shoal",
		Long:          "Shoal serves machine learning models over HTTP and gRPC, and runs requests in batches.",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE:          needsCommand,
		Example: `  shoal serve model.onnx
  shoal infer model --random`,
	}
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		_ = writeHelp(cmd, cmd.OutOrStdout()) // the error of a closed pipe is of no use
	})
	root.SetFlagErrorFunc(usageError)
	groups := []*cobra.Group{{ID: "serve", Title: "Serve models"}, {ID: "client", Title: "Use a running server"}, {ID: "measure", Title: "Measure and understand"}, {ID: "other", Title: "Other commands"}}
	root.AddGroup(groups...)
	for group, commands := range map[string][]*cobra.Command{
		"serve":   {newServeCommand(), newDemoCommand(), newCellCommand(), newRolloutCommand(), newKeysCommand(), newDoctorCommand()},
		"client":  {newListCommand(), newInferCommand(), newLoadCommand(), newUnloadCommand(), newHealthCommand(), newTopCommand()},
		"measure": {newBenchCommand(), newExplainCommand(), newSimulateCommand()},
		"other":   {newVersionCommand()},
	} {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	root.SetHelpCommandGroupID("other")
	root.SetCompletionCommandGroupID("other")
	return root
}
