package repository

import (
	"slices"
	"strings"
	"testing"
)

const labelledConfig = `
backend: "echo"
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "names/of classes.txt" } ]
`

func TestLabelsAreReadWithTheModel(t *testing.T) {
	d := newDisk(t).model("a", labelledConfig, "1").write(map[string]string{"a/names/of classes.txt": "cat\r\n\nblack dog"})
	r := mustStart(t, d, &tracked{}, setup{Mode: Explicit, Models: []string{"a"}})
	v, err := r.Find("a", "")
	if want := []string{"cat", "", "black dog"}; err != nil || !slices.Equal(v.Labels["x"], want) {
		t.Errorf("labels %q, %v, want %q", v.Labels["x"], err, want)
	}
	d.write(map[string]string{"a/names/of classes.txt": "dog\n"})
	if err := r.Load(t.Context(), "a", override{}); err != nil {
		t.Fatal(err)
	}
	v, err = r.Find("a", "")
	if want := []string{"dog"}; err != nil || !slices.Equal(v.Labels["x"], want) {
		t.Errorf("after a change: labels %q, %v, want %q", v.Labels["x"], err, want)
	}
}

func TestAModelWithoutItsLabelsIsNotLoaded(t *testing.T) {
	d := newDisk(t).model("a", labelledConfig, "1")
	const want = `config.pbtxt:4: output[0].label_filename: found "names/of classes.txt", expected a file`
	if _, err := start(t, d, &tracked{}, setup{}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
	inspect := func() error {
		all, err := Inspect([]string{d.dir}, InspectOptions{Backends: []string{"echo"}})
		if err != nil || len(all) != 1 {
			t.Fatalf("%v, %v", all, err)
		}
		return all[0].Err
	}
	if err := inspect(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("inspected: error %v, want %s", err, want)
	}
	d.write(map[string]string{"a/names/of classes.txt": "cat\n"})
	if err := inspect(); err != nil {
		t.Errorf("inspected with labels: %v", err)
	}
}
