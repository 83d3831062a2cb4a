package kservelocal

import (
	"bytes"
	"encoding/binary"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/tensor"
)

// FuzzFrames decodes arbitrary frames. The inputs of an accepted request must be within
// the memory, where the frame says.
func FuzzFrames(f *testing.F) {
	input := binary.LittleEndian.AppendUint32(nil, 1)
	input = append(input, 'x', byte(tensor.FP32), 0, 0, 0)
	input = binary.LittleEndian.AppendUint64(input, 64)
	input = binary.LittleEndian.AppendUint64(input, 8)
	input = binary.LittleEndian.AppendUint32(input, 1)
	input = binary.LittleEndian.AppendUint64(input, 2)
	table := make([]byte, 16+4+4) // no timeout, no priority, no names
	table = binary.LittleEndian.AppendUint32(table, 1)
	table = append(append(table, input...), 0, 0, 0, 0)
	whole := frame{kind: kindInfer, number: 1, a: 1, b: 128, c: 64, rest: table}
	f.Add(whole.append(nil))
	hello := frame{kind: kindHello, a: protocol}
	f.Add(hello.append(nil))
	memory := make([]byte, 4096)
	for i := range memory {
		memory[i] = byte(i >> 4)
	}
	limits := kserve.Limits{}.WithDefaults()
	shared := buf.Wrap(memory, nil)
	f.Cleanup(shared.Release)
	f.Fuzz(func(t *testing.T, b []byte) {
		f, err := readFrame(b)
		if err != nil || f.kind != kindInfer {
			return
		}
		if again := f.append(nil); !bytes.Equal(again, b) {
			t.Fatalf("%x was read as %x", b, again)
		}
		q, err := readInference(&f, &limits)
		if err != nil {
			return
		}
		if room, ok := q.room.slice(memory); ok && uint64(len(room)) != q.room.length {
			t.Fatalf("room of %d bytes for %d", len(room), q.room.length)
		}
		if q.attachData(shared, &limits) != nil {
			return
		}
		defer q.req.Memory.Release()
		for i, x := range q.req.Inputs {
			p := q.spans[i]
			if !bytes.Equal(x.Data, memory[p.offset:p.offset+p.length]) {
				t.Fatalf("input %d is not what lies at %v", i, p)
			}
		}
	})
}

// TestTheClientHasTheSameNumbers compares the numbers with the Python package's.
func TestTheClientHasTheSameNumbers(t *testing.T) {
	const file = "../../../python/src/shoal/_wire.py"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{
		"HELLO": int(kindHello), "MEMORY": int(kindMemory), "FREE": int(kindFree), "INFER": int(kindInfer), "CANCEL": int(kindCancel), "MODEL": int(kindModel),
		"WELCOME": int(kindWelcome), "ANSWER": int(kindAnswer), "FAILED": int(kindFailed), "DESCRIPTION": int(kindDescription),
		"PROTOCOL": protocol, "MAX_FRAME": maxFrame, "ALIGNMENT": alignment, "NO_OTHER_FRAME": noOtherFrame, "WITH_MEMORY": withMemory, "STILL_LOADING": stillLoading,
		"CODES": infer.NumCodes,
	} {
		found := regexp.MustCompile(`(?m)^` + name + ` = (\d+)`).FindSubmatch(text)
		if found == nil || string(found[1]) != strconv.Itoa(want) {
			t.Errorf("%s has %q for %s, want %d", file, found, name, want)
		}
	}
}
