package pause

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestAPauseEndsAfterItsTimeOrWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := For(t.Context(), time.Minute); err != nil || time.Since(began) != time.Minute {
			t.Errorf("%v after %v, want nil after a minute", err, time.Since(began))
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		time.AfterFunc(time.Second, func() { cancel(enough) })
		began = time.Now()
		if err := For(ctx, time.Minute); !errors.Is(err, enough) || time.Since(began) != time.Second {
			t.Errorf("%v after %v, want %v after a second", err, time.Since(began), enough)
		}
	})
}
