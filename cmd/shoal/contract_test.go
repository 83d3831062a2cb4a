package main

import (
	"bytes"
	"encoding/json"
	"testing"
	"testing/slogtest"
)

func TestTheLogIsASlogHandler(t *testing.T) {
	var out bytes.Buffer
	log := newLog(logOptions{format: "json", info: true, warning: true, err: true}, &out)
	err := slogtest.TestHandler(log.Handler(), func() (records []map[string]any) {
		for line := range bytes.Lines(out.Bytes()) {
			var record map[string]any
			if err := json.Unmarshal(line, &record); err != nil {
				t.Fatal(err)
			}
			records = append(records, record)
		}
		return records
	})
	if err != nil {
		t.Error(err)
	}
}
