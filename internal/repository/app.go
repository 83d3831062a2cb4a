package repository

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// scanApp returns the models of a Python file. It reads the file and does not run it, so
// that listing models does not start Python. Therefore the names of the models must be
// written out in the file.
func scanApp(path string) ([]*candidate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("model repository: %w", err)
	}
	names, err := appModels(string(text))
	if err != nil {
		return nil, fmt.Errorf("model repository: %s: %w", path, err)
	}
	var models []*candidate
	whole := fingerprintModules(filepath.Dir(path))
	for _, name := range names {
		m := &candidate{name: name, dir: filepath.Dir(path), file: filepath.Base(path), versions: map[int64]fingerprint{bareVersion: whole}}
		if !modelconfig.ValidName(name) {
			m.err = badName(path, name)
		}
		models = append(models, m)
	}
	return models, nil
}

var (
	modelDecorator = regexp.MustCompile(`^@shoal\.model\b[ \t]*`)
	definition     = regexp.MustCompile(`^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)`)
	nameArgument   = regexp.MustCompile(`^name[ \t\n]*=[ \t\n]*`)
	plainString    = regexp.MustCompile(`^(?:"([^"\\\n]*)"|'([^'\\\n]*)')[ \t\n]*[,)]`)
)

// appModels returns the names of the functions and classes of a Python file that have the
// decorator @shoal.model, in their order, or the names that the decorator gives them. It
// accepts files that Python rejects: Python reports those errors when the model is loaded,
// and the version that was loaded before keeps serving.
func appModels(text string) ([]string, error) {
	s := pythonText{text: strings.ReplaceAll(text, "\r\n", "\n")}
	var names []string
	waiting, name := 0, "" // the line of a decorator whose definition has not come yet, and its name=
	for !s.ended() {
		rest := s.rest()
		switch {
		case !s.lineBegins() || rest[0] == '\n' || rest[0] == '#':
		case modelDecorator.MatchString(rest):
			waiting = s.line()
			s.at += len(modelDecorator.FindString(rest))
			var err error
			if name, err = s.arguments(); err != nil {
				return nil, err
			}
			continue
		case waiting > 0 && rest[0] == '@': // another one
		case waiting > 0:
			m := definition.FindStringSubmatch(rest)
			if m == nil {
				return nil, fmt.Errorf("line %d: @shoal.model must be followed by a def or a class", waiting)
			}
			names, waiting = append(names, cmp.Or(name, m[1])), 0
		}
		s.skip()
	}
	switch {
	case s.open > 0:
		return nil, fmt.Errorf("line %d: the string that begins here is not closed", s.open)
	case waiting > 0:
		return nil, fmt.Errorf("line %d: @shoal.model must be followed by a def or a class", waiting)
	case len(names) == 0 && strings.Contains(text, "TritonPythonModel"):
		return nil, errors.New("a TritonPythonModel cannot be served as a single file; put it into a model repository as NAME/1/model.py, and serve the repository")
	case len(names) == 0:
		return nil, errors.New("the file has no model; decorate a top-level function or class with @shoal.model(inputs=…, outputs=…), as in docs/reference/python-models.md")
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return nil, fmt.Errorf("two models are named %q; give one of them another name with @shoal.model(name=…)", name)
		}
	}
	return names, nil
}

// A pythonText scans Python code. It recognises only strings and comments.
type pythonText struct {
	text string
	at   int
	open int // the line of a string that is not closed; 0 if there is none
}

func (s *pythonText) ended() bool  { return s.at >= len(s.text) }
func (s *pythonText) rest() string { return s.text[s.at:] }
func (s *pythonText) line() int    { return 1 + strings.Count(s.text[:s.at], "\n") }

// lineBegins reports whether the position is the start of a line.
func (s *pythonText) lineBegins() bool { return s.at == 0 || s.text[s.at-1] == '\n' }

// skip advances past a string, a comment or a byte.
func (s *pythonText) skip() {
	switch c := s.text[s.at]; c {
	case '"', '\'':
		s.skipString(string(c))
	case '#':
		n := strings.IndexByte(s.rest(), '\n')
		if n < 0 {
			n = len(s.rest())
		}
		s.at += n
	default:
		s.at++
	}
}

func (s *pythonText) skipString(quote string) {
	line := s.line()
	if three := strings.Repeat(quote, 3); strings.HasPrefix(s.rest(), three) {
		quote = three
	}
	s.at += len(quote)
	for !s.ended() && !strings.HasPrefix(s.rest(), quote) {
		switch {
		case s.text[s.at] == '\n' && len(quote) == 1:
			return // it is not closed, which Python reports
		case s.text[s.at] == '\\':
			s.at++
		}
		s.at++
	}
	if s.ended() {
		s.at, s.open = len(s.text), line
		return
	}
	s.at += len(quote)
}

// arguments reads the arguments of a decorator, and returns the one called name; "" if
// there is none.
func (s *pythonText) arguments() (name string, err error) {
	for depth := 0; !s.ended(); {
		rest := s.rest()
		switch {
		case s.lineBegins() && (rest[0] == '@' || definition.MatchString(rest)):
			return name, nil // the brackets are not closed, which Python reports
		case strings.IndexByte("([{", rest[0]) >= 0:
			depth++
		case strings.IndexByte(")]}", rest[0]) >= 0:
			depth--
		case depth == 1 && strings.IndexByte("(, \t\n", s.text[s.at-1]) >= 0 && nameArgument.MatchString(rest):
			s.at += len(nameArgument.FindString(rest))
			m := plainString.FindStringSubmatch(s.rest())
			if m == nil {
				return "", fmt.Errorf("line %d: name= must be a plain string such as name=\"reader\", because Shoal reads names without running the file", s.line())
			}
			name = m[1] + m[2]
		}
		s.skip()
		if depth <= 0 {
			return name, nil
		}
	}
	return name, nil
}
