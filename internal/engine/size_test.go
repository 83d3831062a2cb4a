package engine

import (
	"testing"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/machine"
)

func TestAModelWithoutRoomIsRefusedWithBothFigures(t *testing.T) {
	const mib = 1 << 20
	small := machine.Memory{Limit: 512 * mib, Free: 100 * mib, Contained: true}
	for _, tt := range []struct {
		need   int64
		memory machine.Memory
		want   string
	}{
		{100 * mib, small, ""},
		{1 << 60, machine.Memory{}, ""},
		{
			100*mib + 1, small,
			"the model needs about 101 MiB of memory, and of the container's 512 MiB only 100 MiB are free: raise the container's limit, or unload another model",
		},
		{
			40 << 30,
			machine.Memory{Limit: 16 << 30, Free: 12 << 30},
			"the model needs about 40960 MiB of memory, and of the machine's 16384 MiB only 12288 MiB are free: run it on a larger one, or unload another model",
		},
	} {
		err := Room(tt.need, tt.memory)
		if (err == nil) != (tt.want == "") || err != nil && (err.Error() != tt.want || infer.CodeOf(err) != infer.Unavailable) {
			t.Errorf("%d bytes of %+v: %v, want %q", tt.need, tt.memory, err, tt.want)
		}
	}
}
