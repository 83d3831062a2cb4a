package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/engine/onnx"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/repository"
)

// A Verdict is how a model runs, compared with the server that it was configured for.
type Verdict string

// The verdicts.
const (
	Unchanged Verdict = "runs unchanged"
	Differs   Verdict = "runs with a difference"
	CannotRun Verdict = "cannot run"
)

// statuses are the severities of verdicts.
var statuses = map[Verdict]Status{Unchanged: OK, Differs: Warn, CannotRun: Fail}

// otherwise is what to do with a model that cannot run, if its error does not say.
const otherwise = "change it, or serve the other models with --exit-on-error=false"

func (f *Facts) judgeModel(m *repository.Inspection) Finding {
	switch {
	case m.Err != nil:
		if found, do := rejections(m.Findings); found != "" {
			return verdict(m.Name, CannotRun, found, do)
		}
		return verdict(m.Name, CannotRun, m.Err.Error(), otherwise)
	case m.Backend == onnx.Name && f.Library.Err != nil:
		return verdict(m.Name, CannotRun, "ONNX Runtime cannot be loaded", "install it, or name it with --onnxruntime-library")
	}
	var versions []string
	for _, n := range m.Versions {
		versions = append(versions, strconv.FormatInt(n, 10))
	}
	return judgeFindings(m.Name, fmt.Sprintf("version %s for %s", strings.Join(versions, ", "), m.Backend), m.Findings)
}

// judgeFindings returns the verdict on a model that runs. A setting that has no effect in the
// other server either makes no difference.
func judgeFindings(name, found string, findings []modelconfig.Finding) Finding {
	kind := Unchanged
	for _, f := range findings {
		found += "; " + f.String()
		if f.Kind == modelconfig.Ignored {
			kind = Differs
		}
	}
	return verdict(name, kind, found, "")
}

// rejections returns the settings for which a model cannot run, and what to do in place of
// them; "" if there are none.
func rejections(findings []modelconfig.Finding) (found, do string) {
	var all, instead []string
	for _, f := range findings {
		if f.Kind != modelconfig.Rejected {
			continue
		}
		if f.Instead != "" && !slices.Contains(instead, f.Instead) {
			instead = append(instead, f.Instead)
		}
		f.Instead = ""
		all = append(all, f.String())
	}
	return strings.Join(all, "; "), strings.Join(instead, "; ")
}

func verdict(model string, v Verdict, found, do string) Finding {
	return Finding{Check: "model " + model, Status: statuses[v], Found: found, Do: do, Model: model, Verdict: v}
}

// Summary returns one line about all models; "" if there are none.
func Summary(findings []Finding) string {
	counts := map[Verdict]int{}
	n := 0
	for _, f := range findings {
		if f.Model != "" {
			counts[f.Verdict]++
			n++
		}
	}
	switch n {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("1 model: %d unchanged, %d with a difference, %d cannot run", counts[Unchanged], counts[Differs], counts[CannotRun])
	}
	return fmt.Sprintf("%d models: %d unchanged, %d with a difference, %d cannot run", n, counts[Unchanged], counts[Differs], counts[CannotRun])
}
