package repository

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/shoal-serving/shoal/internal/infer"
)

// backends by the endings of their model files.
var backends = map[string]string{
	".onnx":   "onnxruntime",
	".py":     "python",
	".joblib": "python", ".pkl": "python", // scikit-learn
	".ubj": "python", ".bst": "python", ".json": "python", // XGBoost
	".pt": "python", // TorchScript
}

// Names of a model's file if its configuration does not set one: the default of a backend,
// or a file of a Python library, which is passed to the backend. The first that exists is
// used.
var (
	usualFiles   = []string{"model.onnx", "model.py"}
	libraryFiles = []string{"model.joblib", "model.pkl", "model.ubj", "model.bst", "model.json", "model.pt"}
)

// exports maps endings of files that cannot be served to what they are, and how to export
// them to ONNX.
var exports = map[string]string{
	".h5":          "Keras: python -m tf2onnx.convert --keras model.h5 --output model.onnx",
	".keras":       "Keras: load it, and call model.export(\"model.onnx\", format=\"onnx\")",
	".pb":          "TensorFlow: python -m tf2onnx.convert --saved-model DIR --output model.onnx, or --graphdef FILE with --inputs and --outputs",
	".savedmodel":  "TensorFlow: python -m tf2onnx.convert --saved-model DIR --output model.onnx",
	".tflite":      "TensorFlow Lite: python -m tf2onnx.convert --tflite FILE --output model.onnx",
	".safetensors": "weights without a model: build the model, load them, and use torch.onnx.export; for models of Hugging Face use optimum-cli export onnx",
	".gguf":        "a language model for llama.cpp, which has a server of its own; or export the model that it was made from with optimum-cli export onnx",
	".mlmodel":     "Core ML, which runs on Apple devices only: export the model that it was made from, for example with torch.onnx.export",
	".mlpackage":   "Core ML, which runs on Apple devices only: export the model that it was made from, for example with torch.onnx.export",
	".pth":         "weights of PyTorch: build the model, load them with load_state_dict, and call torch.onnx.export(model, example, \"model.onnx\", dynamo=True)",
	".plan":        "a TensorRT plan: export the model that it was built from",
	".engine":      "a TensorRT engine: export the model that it was built from",
	".pt2":         "a program of torch.export: call torch.onnx.export(torch.export.load(FILE), f=\"model.onnx\", dynamo=True)",
}

// exportHint returns an error that says how to export a file whose format is not supported;
// nil if its ending is unknown.
func exportHint(path string) error {
	how := exports[strings.ToLower(filepath.Ext(path))]
	if how == "" {
		return nil
	}
	return infer.Errorf(infer.Invalid, "%s: the format is not supported; export the model to ONNX. This is %s", path, how)
}

// unsupportedFormat returns the exportHint of the first file in a version's directory that
// has one.
func unsupportedFormat(dir string) error {
	entries, _ := os.ReadDir(dir) // loading reports a directory that cannot be read
	for _, e := range entries {
		if err := exportHint(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// misnamed returns an error that says how to name the model's file, if a version's
// directory has exactly one file that may be it; nil otherwise.
func misnamed(dir string) error {
	entries, _ := os.ReadDir(dir) // loading reports a directory that cannot be read
	var files []string
	for _, e := range entries {
		ending := filepath.Ext(e.Name())
		if backends[ending] != "" && ending != ".json" { // any file may be JSON
			files = append(files, e.Name())
		}
	}
	if len(files) != 1 {
		return nil
	}
	return infer.Errorf(infer.Invalid, "%s: rename %s to model%s, or set default_model_filename: %q in config.pbtxt", dir, files[0], filepath.Ext(files[0]), files[0])
}

// checkUpload rejects uploaded files that run code when they are loaded, although they look
// like data.
func checkUpload(path string) error {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".pkl", ".joblib":
		return errors.New("pickle files cannot be uploaded, because loading one runs the code in it; if you trust it, put it into the model repository")
	}
	return nil
}
