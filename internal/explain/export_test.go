package explain

// RuleWords is for the test that imports the policy, which imports this package.
var RuleWords = rules
