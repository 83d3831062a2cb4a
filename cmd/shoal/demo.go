package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// demoModel is the model that packages carry; packaging/models has its configuration.
const demoModel = "magika"

// demoModels returns the repository with the model that comes with packages. It lies beside
// the directory of the program, as the library does.
func demoModels() (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("--demo: %w", err)
	}
	models := filepath.Join(filepath.Dir(program), "..", "models")
	if _, err := os.Stat(demoRequest(models)); err != nil {
		return "", errors.New("--demo: this program was built without a model; packages have one, and so has the result of make dist")
	}
	return models, nil
}

// demoRequest returns the file with a request for the model.
func demoRequest(models string) string { return filepath.Join(models, demoModel, "request.json") }

// demoRequests returns a file with a request for each model that has one.
func (o *serveOptions) demoRequests() map[string]string {
	if !o.demo {
		return nil
	}
	return map[string]string{demoModel: demoRequest(o.repositories[len(o.repositories)-1])}
}
