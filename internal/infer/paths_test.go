package infer

import "testing"

func TestClientsDoNotSeeDirectoriesOfTheServer(t *testing.T) {
	for text, want := range map[string]string{
		"/srv/models/m/1/model.onnx: not an ONNX model":                        "m/1/model.onnx: not an ONNX model",
		"open /srv/models/m/1/model.onnx: no such file or directory":           "open m/1/model.onnx: no such file or directory",
		"/srv/m has no version directory; put it into /srv/m/1":                "m has no version directory; put it into m/1",
		`File "/usr/lib/python3/json.py", line 3; '/etc/m2/x'`:                 `File "json.py", line 3; 'x'`,
		"/root/venv/bin/python3 has no numpy":                                  "python3 has no numpy",
		"library=/opt/libx.so (/opt/liby.so)":                                  "library=libx.so (liby.so)",
		"see https://example.org/a/b and and/or 1/2, or POST to v2/models/m/x": "see https://example.org/a/b and and/or 1/2, or POST to v2/models/m/x",
		"/srv/models/m/": "m",
		"":               "",
	} {
		if got := WithoutPaths("m", text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
