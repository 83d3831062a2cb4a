package explain_test

import (
	"testing"

	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/explain"
)

func TestEveryRuleHasItsWords(t *testing.T) {
	for _, r := range automatic.New(automatic.Options{}).Explain().Rules {
		if explain.RuleWords[r.Name] == "" {
			t.Errorf("there are no words for the rule %s", r.Name)
		}
	}
}
