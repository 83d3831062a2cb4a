package dashboard

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/stats"
)

// A reel has the last batches of a version, so that each is encoded once for all viewers.
type reel struct {
	counters *stats.Counters
	viewers  int // guarded by reels.mu

	mu      sync.Mutex // guards the following
	watch   *stats.Watch
	at      time.Time // when it was last read
	batches []encodedBatch
}

// An encodedBatch is a batch as events have it.
type encodedBatch struct {
	number uint64
	text   []byte
}

// reels are those that viewers follow.
type reels struct {
	mu  sync.Mutex // guards the following
	all map[*stats.Counters]*reel
}

// follow returns the reel of a version, and the number of its last batch. The caller must call
// unfollow.
func (r *reels) follow(c *stats.Counters) (followed *reel, last uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[*stats.Counters]*reel{}
	}
	followed = r.all[c]
	if followed == nil {
		followed = &reel{counters: c, watch: c.Watch()}
		r.all[c] = followed
	}
	followed.viewers++
	followed.mu.Lock()
	defer followed.mu.Unlock()
	return followed, followed.watch.Seen()
}

// unfollow ends what follow began. The last one takes the memory with it.
func (r *reels) unfollow(followed *reel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if followed.viewers--; followed.viewers == 0 {
		delete(r.all, followed.counters)
		followed.watch.Close()
	}
}

// since returns the batches after the one with the given number, at most maxBatches, and the number of
// the last one. Batches may be missing that ended less than age before now.
func (r *reel) since(number uint64, now time.Time, age time.Duration) (texts [][]byte, last uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.at) > age {
		if err := r.readLocked(now); err != nil {
			return nil, 0, err
		}
	}
	for _, b := range r.batches {
		if b.number > number {
			texts = append(texts, b.text)
		}
	}
	return texts, r.watch.Seen(), nil
}

func (r *reel) readLocked(now time.Time) error {
	r.at = now
	fresh, _ := r.watch.Next(maxBatches) // viewers count what is missing
	for i := range fresh {
		text, err := json.Marshal(encode(&fresh[i]))
		if err != nil {
			return err
		}
		r.batches = append(r.batches, encodedBatch{fresh[i].Number, text})
	}
	if surplus := len(r.batches) - maxBatches; surplus > 0 {
		r.batches = append(r.batches[:0], r.batches[surplus:]...)
	}
	return nil
}
