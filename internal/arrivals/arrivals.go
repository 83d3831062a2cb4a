// Package arrivals records the times and sizes of requests to a file, and reads it back to
// replay them. It records neither their contents nor their clients.
//
// The file is text. Its first line is [Header]; every other line is one arrival: the
// seconds since the start of the recording, the model, the rows and the priority. Empty
// lines and lines that begin with # are ignored.
package arrivals

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Header is the first line of a file. It ends with the version of the format.
const Header = "shoal arrivals 1"

// columns is the second line of a recorded file.
const columns = "# seconds model rows priority"

// maxSeconds is about 31 years, which fit into a [time.Duration].
const maxSeconds = 1_000_000_000

// maxRows is a limit that only a mistake exceeds.
const maxRows = 1_000_000

// maxLine is the maximum length of a line. It has room for the longest file name as the
// name of a model, in quotes.
const maxLine = 4096

// An Arrival is the arrival of one request.
type Arrival struct {
	At       time.Duration // since the start of the recording, in whole microseconds
	Model    string
	Rows     int    // at least 1
	Priority uint64 // 0 means the default
}

// Append appends the arrival's line to b, without the end of the line.
func (a Arrival) Append(b []byte) []byte {
	micros := a.At.Microseconds()
	b = strconv.AppendInt(b, micros/1e6, 10)
	b = append(b, '.')
	for digit := int64(1e5); digit > 0; digit /= 10 {
		b = append(b, byte('0'+micros/digit%10))
	}
	b = append(b, ' ')
	if plain(a.Model) {
		b = append(b, a.Model...)
	} else {
		b = strconv.AppendQuote(b, a.Model)
	}
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(a.Rows), 10)
	b = append(b, ' ')
	return strconv.AppendUint(b, a.Priority, 10)
}

// plain reports whether a model's name needs no quotes.
func plain(name string) bool {
	for _, r := range name {
		if r == '"' || r == unicode.ReplacementChar || unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return false
		}
	}
	return name != ""
}

// parse parses the line of one arrival.
func parse(line string) (Arrival, error) {
	seconds, rest := cutField(line)
	model, rest, err := cutModel(rest)
	rows, rest := cutField(rest)
	priority, rest := cutField(rest)
	if err != nil || priority == "" || rest != "" {
		return Arrival{}, fmt.Errorf("invalid arrival %q: expected seconds, model, rows and priority, such as 0.250000 resnet 4 0", line)
	}
	a := Arrival{Model: model}
	if a.At, err = parseSeconds(seconds); err != nil {
		return Arrival{}, err
	}
	if a.Rows, err = strconv.Atoi(rows); err != nil || a.Rows < 1 || a.Rows > maxRows {
		return Arrival{}, fmt.Errorf("invalid rows %q: expected a whole number from 1 to %d", rows, maxRows)
	}
	if a.Priority, err = strconv.ParseUint(priority, 10, 64); err != nil {
		return Arrival{}, fmt.Errorf("invalid priority %q: expected a whole number, 0 for the default", priority)
	}
	return a, nil
}

// cutField returns the first word of a line, and the rest.
func cutField(line string) (field, rest string) {
	line = strings.TrimSpace(line)
	if i := strings.IndexFunc(line, unicode.IsSpace); i >= 0 {
		return line[:i], strings.TrimSpace(line[i:])
	}
	return line, ""
}

// cutModel is cutField for a name that may be quoted.
func cutModel(line string) (model, rest string, err error) {
	if !strings.HasPrefix(line, `"`) {
		model, rest = cutField(line)
		return model, rest, nil
	}
	quoted, err := strconv.QuotedPrefix(line)
	if err != nil {
		return "", "", err
	}
	model, err = strconv.Unquote(quoted)
	return model, line[len(quoted):], err
}

// parseSeconds parses a number with up to six decimal places. It avoids floats, so that
// the result is exact.
func parseSeconds(text string) (time.Duration, error) {
	whole, decimals, _ := strings.Cut(text, ".")
	seconds, err := strconv.ParseUint(whole, 10, 32)
	var micros uint64
	if err == nil && decimals != "" && len(decimals) <= 6 {
		micros, err = strconv.ParseUint((decimals + "00000")[:6], 10, 32)
	}
	if err != nil || seconds > maxSeconds || len(decimals) > 6 {
		return 0, fmt.Errorf("invalid seconds %q: expected a number from 0 to %d with up to six decimals", text, maxSeconds)
	}
	return time.Duration(seconds)*time.Second + time.Duration(micros)*time.Microsecond, nil
}

// ReadFile reads the arrivals of a file, sorted by time. Arrivals at the same time are in
// the order of the file. Errors name the file and the line.
func ReadFile(name string) ([]Arrival, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	all, err := read(name, f)
	return all, errors.Join(err, f.Close())
}

func read(name string, r io.Reader) ([]Arrival, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	var all []Arrival
	models := map[string]string{} // one copy of each name
	number := 0
	for lines.Scan() {
		number++
		line := strings.TrimSpace(lines.Text())
		switch {
		case number == 1 && line != Header:
			return nil, fmt.Errorf("%s:1: not a recording of arrivals: the first line is %q, expected %q", name, line, Header)
		case number == 1 || line == "" || line[0] == '#':
			continue
		}
		a, err := parse(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, number, err)
		}
		if _, ok := models[a.Model]; !ok {
			models[a.Model] = strings.Clone(a.Model)
		}
		a.Model = models[a.Model]
		all = append(all, a)
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%s:%d: the line is longer than %d bytes: expected one arrival per line", name, number+1, maxLine)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case number == 0:
		return nil, fmt.Errorf("%s: the file is empty: expected the line %q, followed by arrivals", name, Header)
	}
	// Concurrent requests may be recorded out of order.
	slices.SortStableFunc(all, func(a, b Arrival) int { return cmp.Compare(a.At, b.At) })
	return all, nil
}
