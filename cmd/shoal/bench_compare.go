package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shoal-serving/shoal/internal/bench"
)

// newBenchCompareCommand returns `shoal bench compare`.
func newBenchCompareCommand() *cobra.Command {
	var json, html string
	var failIfWorse bool
	cmd := &cobra.Command{
		Use:   "compare [LABEL=]FILE [LABEL=]FILE ...",
		Short: "Compare measurements of shoal bench",
		Long: `Compare reads files of "shoal bench --json", and compares each side with the first, load by load: throughput, mean,
p50, p95 and p99, as ratios with 95 % confidence intervals. Files with the same label are repeats of one side. The label is the name
of the file without a number at its end: base-1.json and base-2.json are base. To tell a difference from noise, a side needs seven
repeats, measured in turn: base, new, base, new.`,
		Example: `  shoal bench compare base-*.json new-*.json
  shoal bench compare before=run-1.json after=run-2.json --html compare.html
  shoal bench compare base-*.json new-*.json --fail-if-worse`,
		Args: arguments(1, -1, `name the files to compare, as in "shoal bench compare base.json new.json"`),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := oneToStdout([2]string{"--json", json}, [2]string{"--html", html}); err != nil {
				return misuse{err}
			}
			sides, err := readSides(args)
			if err != nil {
				return misuse{err}
			}
			c, err := bench.Compare(sides)
			if err != nil {
				return misuse{err}
			}
			if json != "-" && html != "-" { // then the output is for another program
				err = c.WriteText(cmd.OutOrStdout())
			}
			if json != "" {
				err = errors.Join(err, writeTo(json, cmd.OutOrStdout(), c.WriteJSON))
			}
			if html != "" {
				err = errors.Join(err, writeTo(html, cmd.OutOrStdout(), c.WriteHTML))
			}
			if worse := c.Worse(); failIfWorse && len(worse) > 0 {
				err = errors.Join(err, fmt.Errorf("worse: %s", strings.Join(worse, "; ")))
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&json, "json", "", "write all results as JSON to this `file`; use - for stdout")
	f.StringVar(&html, "html", "", "write a page with charts to this `file`; use - for stdout")
	f.BoolVar(&failIfWorse, "fail-if-worse", false, "exit with status 1 if a result is worse")
	return cmd
}

// readSides reads files, and puts those with the same label together.
func readSides(args []string) (sides []bench.Side, err error) {
	for _, arg := range args {
		label, file := labelOf(arg)
		report, err := readReport(file)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(sides, func(s bench.Side) bool { return s.Label == label })
		if i < 0 {
			i = len(sides)
			sides = append(sides, bench.Side{Label: label})
		}
		sides[i].Reports = append(sides[i].Reports, report)
	}
	if len(sides) == 1 {
		return nil, fmt.Errorf("all files are repeats of %q, and there is nothing to compare it with: name other files, or name the sides, as in before=%s", sides[0].Label, args[0])
	}
	return sides, nil
}

// repeatOf matches the number of a repeat at the end of a name.
var repeatOf = regexp.MustCompile(`-[0-9]+$`)

// labelOf splits LABEL=FILE, or takes the label from the name of the file. An argument with
// a directory before the equals sign is a file.
func labelOf(arg string) (label, file string) {
	if label, file, ok := strings.Cut(arg, "="); ok && label != "" && !strings.ContainsRune(label, filepath.Separator) {
		return label, file
	}
	stem := strings.TrimSuffix(filepath.Base(arg), filepath.Ext(arg))
	if short := repeatOf.ReplaceAllString(stem, ""); short != "" {
		stem = short
	}
	return stem, arg
}

func readReport(file string) (*bench.Report, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var r bench.Report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s is not what `shoal bench --json` writes: %w", file, err)
	}
	if len(r.Levels) == 0 {
		return nil, fmt.Errorf("%s has no levels: it is not what `shoal bench --json` writes, or nothing was measured", file)
	}
	return &r, nil
}
