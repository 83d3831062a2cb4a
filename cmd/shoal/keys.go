package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/identity"
)

func newKeysCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Args:  cobra.ArbitraryArgs,
		RunE:  needsCommand,
		Short: "Create, list and revoke API keys",
		Long: `Create, list and revoke the API keys of a server that runs with --api-keys.

The file has a hash of each key, and not the key. The server follows its changes within seconds.`,
	}
	cmd.AddCommand(newKeysCreateCommand(), newKeysListCommand(), newKeysRevokeCommand())
	return cmd
}

// keysFile adds the flag that names the file of keys. It is the server's flag, with the same
// environment variable.
func keysFile(f *pflag.FlagSet) *string {
	file := new(string)
	f.StringVar(file, keysFlag, os.Getenv(variable(keysFlag)), "`file` of API keys; defaults to "+variable(keysFlag))
	f.Lookup(keysFlag).DefValue = ""
	return file
}

var errNoKeysFile = misuse{errors.New("name the file of API keys with --" + keysFlag + ", as for the server")}

func newKeysCreateCommand() *cobra.Command {
	var (
		k       identity.Key
		role    access.Role
		models  []string
		expires time.Duration
	)
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create an API key and print it, once",
		Example: `  shoal keys create --api-keys keys.json --role infer --name web
  shoal keys create --api-keys keys.json --role infer --models 'resnet*' --expires 2160h
  shoal keys create --api-keys keys.json --role admin --name ops`,
		Args: arguments(0, 0, ""),
	}
	file := keysFile(cmd.Flags())
	cmd.Flags().Var((*roleFlag)(&role), "role", "what the key may do: infer runs models, read reads everything, admin does everything")
	cmd.Flags().StringVar(&k.Name, "name", "", "name of the key in logs")
	cmd.Flags().StringVar(&k.Tenant, "tenant", "", "tenant that uses the key")
	cmd.Flags().StringSliceVar(&models, "models", nil, "`pattern` of the models that the role is for, such as resnet*; may be repeated; none means all")
	cmd.Flags().DurationVar(&expires, "expires", 0, "time until the key expires, such as 720h; 0 means never")
	topic(cmd.Flags(), "Options")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case *file == "":
			return errNoKeysFile
		case role == 0:
			return misuse{errors.New("--role is missing: expected infer, read or admin")}
		case expires < 0:
			return misuse{fmt.Errorf("--expires: %v is not valid: expected a time that is not negative", expires)}
		}
		now := time.Now()
		k.Grants = []access.Grant{{Role: role, Models: models}}
		if expires > 0 {
			k.Expires = now.Add(expires).UTC().Truncate(time.Second)
		}
		created, secret, err := identity.CreateKey(*file, k, now)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), secret); err != nil { // nothing else, so that scripts can use it
			return err
		}
		_, err = fmt.Fprintf(cmd.ErrOrStderr(), "Created key %s in %s. The key is not kept and cannot be shown again.\nClients send it as \"Authorization: Bearer KEY\".\n", created.ID, *file)
		return err
	}
	return cmd
}

func newKeysListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List API keys, without their secrets", Args: arguments(0, 0, "")}
	file := keysFile(cmd.Flags())
	topic(cmd.Flags(), "Options")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *file == "" {
			return errNoKeysFile
		}
		keys, err := identity.ReadKeys(*file)
		if err != nil {
			return err
		}
		return listKeys(cmd.OutOrStdout(), keys, time.Now())
	}
	return cmd
}

// listKeys prints a table of keys.
func listKeys(w io.Writer, keys []identity.Key, now time.Time) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "ID\tNAME\tROLE\tMODELS\tTENANT\tCREATED\tSTATE")
	for _, k := range keys {
		state := "usable"
		switch {
		case !k.Revoked.IsZero():
			state = "revoked " + k.Revoked.Format(time.DateOnly)
		case !k.Usable(now):
			state = "expired " + k.Expires.Format(time.DateOnly)
		case !k.Expires.IsZero():
			state = "until " + k.Expires.Format(time.DateOnly)
		}
		for _, g := range k.Grants {
			models := strings.Join(g.Models, ",")
			if models == "" {
				models = "*"
			}
			_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, k.Name, g.Role, models, k.Tenant, k.Created.Format(time.DateOnly), state)
		}
	}
	return table.Flush() // with the first error
}

func newKeysRevokeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "Revoke an API key", Example: "  shoal keys revoke --api-keys keys.json k3f9q2ab",
		Args: arguments(1, 1, `name the ID of a key, as in "shoal keys revoke k3f9q2ab"; "shoal keys list" shows them`),
	}
	file := keysFile(cmd.Flags())
	topic(cmd.Flags(), "Options")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *file == "" {
			return errNoKeysFile
		}
		k, err := identity.RevokeKey(*file, args[0], time.Now())
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "Revoked key %s. Servers refuse it within seconds.\n", k.ID)
		return err
	}
	return cmd
}

// A roleFlag is the value of a flag that names a role.
type roleFlag access.Role

func (r *roleFlag) String() string {
	if *r == 0 {
		return ""
	}
	return access.Role(*r).String()
}

func (r *roleFlag) Type() string { return "infer|read|admin" }

func (r *roleFlag) Set(s string) error { return (*access.Role)(r).UnmarshalText([]byte(s)) }
