package render

import (
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/script"
	"github.com/shoal-serving/shoal/internal/simulate/scenario"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestScripts shows scenarios as the terminal does. Each block is a scenario, or
// names one:
//
//	file PATH
//	columns N     of the terminal (100)
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", func(*testing.T) func([]string) string {
		return func(lines []string) string {
			columns, file := 100, ""
			var text []string
			for _, line := range lines {
				word, rest, _ := strings.Cut(line, " ")
				switch word {
				case "file":
					file = rest
				case "columns":
					columns, _ = strconv.Atoi(rest)
				default:
					text = append(text, line)
				}
			}
			return show(file, strings.Join(text, "\n"), columns)
		}
	})
}

func show(file, text string, columns int) string {
	s, err := scenario.Parse("scenario.yaml", []byte(text))
	if file != "" {
		s, err = scenario.Load(file)
	}
	if err != nil {
		return err.Error()
	}
	report, err := s.Run()
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	if err := Text(&out, report, columns); err != nil {
		return err.Error()
	}
	return out.String()
}
