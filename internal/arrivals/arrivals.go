// Package arrivals keeps when requests arrived, and of what size, in a file that can
// be played again. It records neither the contents of requests nor their clients.
//
// The file is text. Its first line is [Header]; every other line is one arrival: the
// seconds since the recording began, the model, the rows and the priority. Empty lines
// and those that begin with # are for the reader.
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

// Header is the first line of a file. The number is that of the format.
const Header = "shoal arrivals 1"

// columns follows the header of a file that was recorded.
const columns = "# seconds model rows priority"

// maxSeconds is 31 years, which fit into a duration.
const maxSeconds = 1_000_000_000

// maxRows is more than any request has.
const maxRows = 1_000_000

// maxLine is the longest line that is read: a file name as long as there are, quoted,
// has room.
const maxLine = 4096

// An Arrival is one request as it came.
type Arrival struct {
	At       time.Duration // since the recording began, in whole microseconds
	Model    string
	Rows     int    // at least 1
	Priority uint64 // 0 is a request that names none
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

// plain reports whether a model's name can stand in a line as it is.
func plain(name string) bool {
	for _, r := range name {
		if r == '"' || r == unicode.ReplacementChar || unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return false
		}
	}
	return name != ""
}

// Parse reads the line of one arrival.
func Parse(line string) (Arrival, error) {
	seconds, rest := cutField(line)
	model, rest, err := cutModel(rest)
	rows, rest := cutField(rest)
	priority, rest := cutField(rest)
	if err != nil || priority == "" || rest != "" {
		return Arrival{}, fmt.Errorf("found %q, expected seconds, model, rows and priority, such as 0.250000 resnet 4 0", line)
	}
	a := Arrival{Model: model}
	if a.At, err = parseSeconds(seconds); err != nil {
		return Arrival{}, err
	}
	if a.Rows, err = strconv.Atoi(rows); err != nil || a.Rows < 1 || a.Rows > maxRows {
		return Arrival{}, fmt.Errorf("rows: found %q, expected a whole number from 1 to %d", rows, maxRows)
	}
	if a.Priority, err = strconv.ParseUint(priority, 10, 64); err != nil {
		return Arrival{}, fmt.Errorf("priority: found %q, expected a whole number, 0 for none", priority)
	}
	return a, nil
}

// cutField returns the first word of a line, and what follows it.
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

// parseSeconds reads up to six decimals. It does not go through a float, so that what
// was written is what is read.
func parseSeconds(text string) (time.Duration, error) {
	whole, decimals, _ := strings.Cut(text, ".")
	seconds, err := strconv.ParseUint(whole, 10, 32)
	var micros uint64
	if err == nil && decimals != "" && len(decimals) <= 6 {
		micros, err = strconv.ParseUint((decimals + "00000")[:6], 10, 32)
	}
	if err != nil || seconds > maxSeconds || len(decimals) > 6 {
		return 0, fmt.Errorf("seconds: found %q, expected a number from 0 to %d with up to six decimals", text, maxSeconds)
	}
	return time.Duration(seconds)*time.Second + time.Duration(micros)*time.Microsecond, nil
}

// ReadFile reads the arrivals of a file, by time. Those of one time are in the order of
// the file.
func ReadFile(name string) ([]Arrival, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	all, err := Read(name, f)
	return all, errors.Join(err, f.Close())
}

// Read is [ReadFile] for a file that is open. Its name is for errors, which have the
// line.
func Read(name string, r io.Reader) ([]Arrival, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	var all []Arrival
	models := map[string]string{} // one copy of each name, however often it stands there
	number := 0
	for lines.Scan() {
		number++
		line := strings.TrimSpace(lines.Text())
		switch {
		case number == 1 && line != Header:
			return nil, fmt.Errorf("%s:1: found %q, expected %q, with which a recording of arrivals begins", name, line, Header)
		case number == 1 || line == "" || line[0] == '#':
			continue
		}
		a, err := Parse(line)
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
		return nil, fmt.Errorf("%s:%d: found a line of more than %d bytes, expected one arrival a line", name, number+1, maxLine)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case number == 0:
		return nil, fmt.Errorf("%s: found an empty file, expected the line %q and arrivals", name, Header)
	}
	// Requests that come at once may be written down in another order.
	slices.SortStableFunc(all, func(a, b Arrival) int { return cmp.Compare(a.At, b.At) })
	return all, nil
}
