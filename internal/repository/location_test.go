package repository

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/blob/memblob"
	"gocloud.dev/gcerrors"

	"github.com/shoal-serving/shoal/internal/bucket"
	"github.com/shoal-serving/shoal/internal/bucket/hubtest"
	"github.com/shoal-serving/shoal/internal/engine/ensemble"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/servable"
)

// remoteModels runs a test in virtual time with a repository whose models are in a bucket.
func remoteModels(t *testing.T, objects map[string]string, change func(*setup), test func(t *testing.T, r *running, store *blob.Bucket, eng *slow)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		store := memblob.OpenBucket(nil)
		put(t, store, objects)
		cache, err := bucket.OpenCache(dir, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		eng, p := &slow{loads: map[string]int{}}, pacer.NewPortable()
		opts := setup{
			Buckets: []*bucket.Bucket{bucket.New("mem://models", "", store)}, Cache: cache, Mode: Demand, Demand: DemandOptions{Memory: 1 << 20}, Pacer: p, Cores: 3,
			Log: slog.New(slog.DiscardHandler), Runners: map[string]servable.Runner{"echo": {Engine: eng}},
		}
		if change != nil {
			change(&opts)
		}
		r := opts.open()
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		test(t, r, store, eng)
		if err := r.Close(); err != nil || eng.open != 0 {
			t.Errorf("close: %v; %d models are still open", err, eng.open)
		}
		p.Close()
		if err := cache.Close(); err != nil {
			t.Error(err)
		}
	})
}

func put(t *testing.T, store *blob.Bucket, objects map[string]string) {
	t.Helper()
	for key, content := range objects {
		if err := store.WriteAll(context.Background(), key, []byte(content), nil); err != nil {
			t.Fatal(err)
		}
	}
}

// remoteModel returns the objects of a model with two versions.
func remoteModel(name string) map[string]string {
	return map[string]string{name + "/config.pbtxt": echoConfig, name + "/1/weights": "old", name + "/2/weights": "new of " + name, name + "/": ""}
}

func TestModelsOfABucketAreListedAndLoadedOnDemand(t *testing.T) {
	remoteModels(t, remoteModel("a"), nil, func(t *testing.T, r *running, store *blob.Bucket, _ *slow) {
		if all := r.Index(false); len(all) != 1 || all[0].Name != "a" {
			t.Errorf("the index has %+v", all)
		}
		if _, err := request(t.Context(), r, "b"); infer.CodeOf(err) != infer.NotFound {
			t.Errorf("a model that does not exist: %v", err)
		}
		mustAsk(t, r, "a", time.Second)
		if all := r.Index(true); len(all) != 1 || all[0].Version != "2" {
			t.Errorf("ready are %+v, want the newest version", all)
		}
		put(t, store, remoteModel("b"))
		time.Sleep(2 * DefaultPoll)
		mustAsk(t, r, "b", time.Second)
	})
}

func TestAModelLoadsFromAStoreThatListsDirectories(t *testing.T) {
	objects := remoteModel("a")
	for _, dir := range []string{"a", "a/1", "a/2", "a-1", "a-1/1"} { // Azure's with a hierarchical namespace does
		objects[dir] = ""
	}
	objects["a-1/1/weights"] = "other"
	remoteModels(t, objects, nil, func(t *testing.T, r *running, _ *blob.Bucket, _ *slow) {
		mustAsk(t, r, "a", time.Second)
		if all := r.Index(true); len(all) != 1 || all[0].Version != "2" {
			t.Errorf("ready are %+v, want the newest version", all)
		}
	})
}

func TestAVersionWithoutFilesIsOneInABucketToo(t *testing.T) {
	for _, marker := range []string{"e/1/", "e/1"} { // that of a folder, and the entry of a directory
		objects := map[string]string{"e/config.pbtxt": chain("a"), marker: "", "e/warmup/": "", "gone/1/": ""}
		maps.Copy(objects, remoteModel("a"))
		ensembles := &ensemble.Engine{Log: slog.New(slog.DiscardHandler)}
		explicit := func(o *setup) {
			o.Mode, o.Runners[ensemble.Name] = Explicit, servable.Runner{Engine: ensembles, Instances: 4}
		}
		remoteModels(t, objects, explicit, func(t *testing.T, r *running, store *blob.Bucket, _ *slow) {
			ensembles.Members = r.Server
			err := r.Load(t.Context(), "e", override{})
			if got, want := index(r), "a 2 READY; e 1 READY"; err != nil || got != want {
				t.Errorf("with %s the index has %s, want %s; %v", marker, got, want, err)
			}
			put(t, store, map[string]string{"e/2/": "", "a/2/": "", "a/3/": ""}) // those of a are of files that exist, or not any more
			err = errors.Join(r.Load(t.Context(), "e", override{}), r.Load(t.Context(), "a", override{}))
			if got := serving(r, "e"); err != nil || !slices.Equal(got, []int64{2}) {
				t.Errorf("with another version, the versions %v serve; %v", got, err)
			}
			if got := serving(r, "a"); !slices.Equal(got, []int64{2}) {
				t.Errorf("the versions %v of a serve, of which only 2 has files", got)
			}
		})
	}
}

func TestAStoreThatIsDownHarmsNoLoadedModel(t *testing.T) {
	remoteModels(t, remoteModel("a"), nil, func(t *testing.T, r *running, store *blob.Bucket, eng *slow) {
		put(t, store, remoteModel("b"))
		time.Sleep(2 * DefaultPoll)
		mustAsk(t, r, "a", time.Second)
		if err := store.Close(); err != nil { // every call fails
			t.Fatal(err)
		}
		if _, err := request(t.Context(), r, "b"); infer.CodeOf(err) != infer.Unavailable || !strings.Contains(err.Error(), "its files cannot be fetched") {
			t.Errorf("a model that cannot be fetched: %v", err)
		}
		time.Sleep(10 * DefaultPoll) // polls fail, too
		mustAsk(t, r, "a", 0)
		if err := r.Unload("a"); err != nil {
			t.Fatal(err)
		}
		mustAsk(t, r, "a", time.Second) // from the cache
		if n := eng.loadsOfA(); n != 2 {
			t.Errorf("loaded %d times, want twice", n)
		}
	})
}

func TestAFetchThatFailedIsTriedAgainAtTheNextPoll(t *testing.T) {
	large := func(name string) map[string]string { // the cache has room for one
		return map[string]string{name + "/config.pbtxt": echoConfig, name + "/1/weights": strings.Repeat(name, 700<<10)}
	}
	poll := func(o *setup) { o.Mode = Poll }
	remoteModels(t, large("a"), poll, func(t *testing.T, r *running, store *blob.Bucket, _ *slow) {
		put(t, store, large("b"))
		time.Sleep(4 * DefaultPoll)
		if got := index(r); !strings.HasPrefix(got, "a 1 READY; b UNAVAILABLE") || !strings.Contains(got, "raise it") {
			t.Fatalf("the index has %s", got)
		}
		for key := range large("a") {
			if err := store.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(4 * DefaultPoll)
		if got := serving(r, "b"); !slices.Equal(got, []int64{1}) {
			t.Errorf("versions %v of the model serve, want 1; the index has %s", got, index(r))
		}
	})
}

func TestAClientLoadsWhatTheBucketHasNow(t *testing.T) {
	explicit := func(o *setup) { o.Mode = Explicit }
	remoteModels(t, nil, explicit, func(t *testing.T, r *running, store *blob.Bucket, eng *slow) {
		if err := r.Load(t.Context(), "a", override{}); infer.CodeOf(err) != infer.NotFound {
			t.Errorf("before it exists: %v", err)
		}
		put(t, store, remoteModel("a"))
		if err := r.Load(t.Context(), "a", override{}); err != nil {
			t.Fatal(err)
		}
		put(t, store, map[string]string{"a/3/weights": "newest"})
		if err := r.Load(t.Context(), "a", override{}); err != nil {
			t.Fatal(err)
		}
		if all := r.Index(true); len(all) != 1 || all[0].Version != "3" || eng.loadsOfA() != 2 {
			t.Errorf("ready are %+v after %d loads, want version 3 after two", all, eng.loadsOfA())
		}
		if err := r.Load(t.Context(), "a", override{}); err != nil || eng.loadsOfA() != 2 {
			t.Errorf("unchanged files were loaded again: %d loads, %v", eng.loadsOfA(), err)
		}
	})
}

func TestAModelFileInABucketIsAModel(t *testing.T) {
	l := &remoteLocation{bucket: bucket.New("mem://models", "", memblob.OpenBucket(nil))}
	models := l.group([]bucket.Object{{Key: "a.onnx", Size: 5}, {Key: "notes.txt"}, {Key: ".hidden/1/model.onnx"}, {Key: "b/1/model.onnx", Size: 7}, {Key: "b/__pycache__/x"}})
	if len(models) != 2 || models["a"][0].file != "a.onnx" || models["a"][0].remote.newest() != 5 || models["b"][0].remote.newest() != 7 || len(models["b"][0].remote.shared) != 0 {
		t.Errorf("found %+v", models)
	}
}

// stalling is a bucket with one model, or one that does not answer.
type stalling struct {
	driver.Bucket // nil: only the methods below are called

	stalls bool
	asked  int
}

func (s *stalling) ListPaged(ctx context.Context, _ *driver.ListOptions) (*driver.ListPage, error) {
	s.asked++
	if s.stalls {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &driver.ListPage{Objects: []*driver.ListObject{{Key: "a.onnx"}}}, nil
}

func (s *stalling) ErrorCode(error) gcerrors.ErrorCode { return gcerrors.Unknown }
func (s *stalling) Close() error                       { return nil }

func TestTheIndexDoesNotWaitAgainAndAgainForABucketThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &stalling{}
		l := &remoteLocation{bucket: bucket.New("mem://models", "", blob.NewBucket(store))}
		list := func(want time.Duration) {
			began := time.Now()
			models, err := l.list(t.Context(), false)
			if took := time.Since(began); err != nil || len(models) != 1 || took != want {
				t.Errorf("after %v: %d models, %v; want one after %v", took, len(models), err, want)
			}
		}
		list(0)
		store.stalls = true
		time.Sleep(listedFor)
		go list(listTimeout)
		synctest.Wait()
		list(0) // another waits already
		time.Sleep(listedFor)
		list(0)
		time.Sleep(listTimeout - listedFor)
		synctest.Wait()
		list(0) // it was asked a moment ago
		time.Sleep(listedFor)
		list(listTimeout)
		if store.asked != 3 {
			t.Errorf("the bucket was asked %d times, want 3", store.asked)
		}
	})
}

func TestTheIndexDoesNotWaitAgainForABucketThatNeverAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &remoteLocation{bucket: bucket.New("mem://models", "", blob.NewBucket(&stalling{stalls: true}))}
		for _, want := range []time.Duration{listTimeout, 0} {
			began := time.Now()
			if _, err := l.list(t.Context(), false); infer.CodeOf(err) != infer.Unavailable || time.Since(began) != want {
				t.Errorf("after %v: %v, want that it is unavailable after %v", time.Since(began), err, want)
			}
		}
	})
}

func TestTheBackendIsThatOfAVersionThatIsFetched(t *testing.T) {
	objects := map[string]string{"a/1/model.onnx": "old", "a/2/model.onnx": "new"}
	runs := func(o *setup) { o.Runners["onnxruntime"] = o.Runners["echo"] }
	remoteModels(t, objects, runs, func(t *testing.T, r *running, _ *blob.Bucket, _ *slow) {
		if err := r.Load(t.Context(), "a", override{}); err != nil {
			t.Fatal(err)
		}
		if v, err := r.Find("a", "2"); err != nil || v.Config.Backend != "onnxruntime" {
			t.Errorf("found %+v, %v", v, err)
		}
	})
}

func TestUnloadingAModelEndsItsFetch(t *testing.T) {
	h := hubtest.New(t)
	h.Commit("main", map[string][]byte{"config.pbtxt": []byte(echoConfig), "model.onnx": make([]byte, 2*hubtest.Large)})
	h.Stalls.Store(true)
	t.Setenv("HF_ENDPOINT", h.URL)
	b, err := bucket.Open(t.Context(), "hf://"+hubtest.Repository)
	if err != nil {
		t.Fatal(err)
	}
	cache, err := bucket.OpenCache(t.TempDir(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	const name = "tiny-model"
	for _, mode := range []Mode{Explicit, Demand} {
		eng, p := &slow{loads: map[string]int{}}, pacer.NewPortable()
		r := setup{
			Buckets: []*bucket.Bucket{b}, Cache: cache, Mode: mode, Demand: DemandOptions{Memory: 1 << 20}, Pacer: p, Cores: 3,
			Log: slog.New(slog.DiscardHandler), Runners: map[string]servable.Runner{"echo": {Engine: eng}},
		}.open()
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := h.Left.Load()
		done := make(chan error, 1)
		go func() {
			if mode == Explicit {
				done <- r.Load(t.Context(), name, override{})
				return
			}
			_, err := request(t.Context(), r, name)
			done <- err
		}()
		for h.Stalled.Load() == before {
			time.Sleep(time.Millisecond)
		}
		if err := r.Unload(name); err != nil {
			t.Errorf("mode %d: %v", mode, err)
		}
		if err := <-done; err == nil || !strings.Contains(err.Error(), "unloaded while it was being loaded") {
			t.Errorf("mode %d: the load ended with %v", mode, err)
		}
		for h.Left.Load() == before { // a fetch that goes on would hold the test
			time.Sleep(time.Millisecond)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		p.Close()
	}
	if err := errors.Join(b.Close(), cache.Close()); err != nil {
		t.Error(err)
	}
}
