package repository

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/shoal-serving/shoal/internal/infer"
)

// backends by the endings of their models' files.
var backends = map[string]string{
	".onnx":   "onnxruntime",
	".py":     "python",
	".joblib": "python", ".pkl": "python", // scikit-learn
	".ubj": "python", ".bst": "python", ".json": "python", // XGBoost
	".pt": "python", // TorchScript
}

// What a model's file is called if its configuration does not say: the usual file of a
// backend, or one of a library, which has to be told to the backend. The first that is
// there counts.
var (
	usualFiles   = []string{"model.onnx", "model.py"}
	libraryFiles = []string{"model.joblib", "model.pkl", "model.ubj", "model.bst", "model.json", "model.pt"}
)

// exports says, by the ending of a file that cannot be served, how to make one of it
// that can.
var exports = map[string]string{
	".h5":          "Keras: python -m tf2onnx.convert --keras model.h5 --output model.onnx",
	".keras":       "Keras: load it, and write it with model.export(\"model.onnx\", format=\"onnx\")",
	".pb":          "TensorFlow: python -m tf2onnx.convert --saved-model DIR --output model.onnx, or --graphdef FILE with --inputs and --outputs",
	".savedmodel":  "TensorFlow: python -m tf2onnx.convert --saved-model DIR --output model.onnx",
	".tflite":      "TensorFlow Lite: python -m tf2onnx.convert --tflite FILE --output model.onnx",
	".safetensors": "weights without a model: build the model with its library, load them, and write it with torch.onnx.export, or with optimum-cli export onnx for those of Hugging Face",
	".gguf":        "a language model for llama.cpp, which serves it itself; export the one that it was made of with optimum-cli export onnx",
	".mlmodel":     "Core ML, which runs at Apple alone: export the model that it was made of, for instance with torch.onnx.export",
	".mlpackage":   "Core ML, which runs at Apple alone: export the model that it was made of, for instance with torch.onnx.export",
	".pth":         "PyTorch's weights: build the model, load_state_dict them, and write it with torch.onnx.export(model, example, \"model.onnx\", dynamo=True)",
	".pt2":         "PyTorch's torch.export: write it with torch.onnx.export(torch.export.load(FILE), f=\"model.onnx\", dynamo=True)",
}

// exportHint says what to do with a file that cannot be served as it is; nil if the
// ending is none that we know.
func exportHint(path string) error {
	how := exports[strings.ToLower(filepath.Ext(path))]
	if how == "" {
		return nil
	}
	return infer.Errorf(infer.Invalid, "%s: found a format that is not served, expected ONNX, to which it can be exported. It is %s", path, how)
}

// foreign returns the exportHint of the first file in a version's directory that has
// one.
func foreign(dir string) error {
	entries, _ := os.ReadDir(dir) // what cannot be read is told when it is loaded
	for _, e := range entries {
		if err := exportHint(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// checkSent refuses files of clients that run code when they are opened without
// looking as if they did.
func checkSent(path string) error {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".pkl", ".joblib":
		return fmt.Errorf("found a pickle, which runs the code that is in it; put it into the model repository if you trust it")
	}
	return nil
}
