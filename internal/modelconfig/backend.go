package modelconfig

import "fmt"

// alternativesTo are ways to serve a model of one of Triton's backends that Shoal does not
// have.
var alternativesTo = map[string]string{
	"tensorrt":   `export the model that the plan was built from to ONNX, name the file model.onnx, and set backend: "onnxruntime"`,
	"tensorflow": `convert it with "python -m tf2onnx.convert --saved-model DIR --output model.onnx", and set backend: "onnxruntime"`,
	"openvino":   `export the model that it was made from to ONNX, name the file model.onnx, and set backend: "onnxruntime"`,
	"fil":        `set backend: "python" to run a file of XGBoost or scikit-learn in Python`,
}

// UnsupportedBackend returns the error for a configuration whose backend is not one of
// those available.
func (c *Config) UnsupportedBackend(available []string) error {
	field, found := "backend", c.Backend
	if c.Proto.GetBackend() == "" && c.Proto.GetPlatform() != "" {
		field, found = "platform", c.Proto.GetPlatform()
	}
	names := quoted(available, func(name string) string { return name })
	if c.Backend == "" {
		return c.Invalid(field, "not set, and no file of the model shows it; name the model's file model.onnx or model.py, or set backend to one of %s", names)
	}
	instead, ok := alternativesTo[c.Backend]
	switch hint := didYouMean(found, available); {
	case ok:
	case hint != "":
		return c.Wrong(field, fmt.Sprintf("%q", found), "one of %s%s", names, hint)
	default:
		instead = "run the model from a Python model (docs/reference/python-models.md)"
	}
	return c.Invalid(field, "%q is not supported; %s. Supported are %s", found, instead, names)
}
